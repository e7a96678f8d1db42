// Options of `serve` that could never do what they were given for are refused before a model is looked for.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands.h"

namespace tensorfold::cli {
namespace {

using ::testing::HasSubstr;

std::string errors_of_serve(const std::vector<std::string>& options) {
  std::vector<std::string> arguments = {"serve", "/there/is/no/such/model"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  EXPECT_NE(run_program({serve_command()}, arguments), 0);
  ::testing::internal::GetCapturedStdout();
  return ::testing::internal::GetCapturedStderr();
}

TEST(EndpointOptions, AnOriginIsWhatABrowserSends) {
  for (const char* wrong :
       {"foo", "page.example", "https://", "https://page.example/", "https://a.example,https://b.c"}) {
    EXPECT_THAT(errors_of_serve({"--cors", wrong}), HasSubstr("is no origin")) << wrong;
  }
  for (const char* right : {"*", "null", "https://page.example", "http://127.0.0.1:3000"}) {
    EXPECT_THAT(errors_of_serve({"--cors", right}), HasSubstr("/there/is/no/such/model")) << right;
  }
}

TEST(EndpointOptions, AnAliasIsNotEmptyAndOneReplyAtLeastIsMadeAtATime) {
  EXPECT_THAT(errors_of_serve({"--alias", ""}), HasSubstr("--alias is empty"));
  EXPECT_THAT(errors_of_serve({"--parallel", "0"}), HasSubstr("--parallel must be auto or a number from 1"));
}

}  // namespace
}  // namespace tensorfold::cli
