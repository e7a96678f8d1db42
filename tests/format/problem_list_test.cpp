#include "format/problem_list.h"

#include <string>

#include <gtest/gtest.h>

#include "base/error.h"

namespace tensorfold::format {
namespace {

TEST(ProblemList, NamesTheFirstTwoHundredAndCountsTheRest) {
  ProblemList problems;
  for (int i = 0; i < 60'000; ++i) problems.add("problem {}", i);
  try {
    problems.throw_if_any(ErrorKind::corrupt_file, "a checkpoint");
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("a checkpoint: problem 0; problem 1; ")) << text;
    EXPECT_NE(text.find("problem 199;"), std::string::npos) << text;
    EXPECT_EQ(text.find("problem 200"), std::string::npos) << text;
    EXPECT_NE(text.find("59800 more"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tensorfold::format
