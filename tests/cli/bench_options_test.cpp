// What bench refuses before it makes any weights: one line that names the option.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command.h"
#include "cli/commands.h"

namespace tensorfold::cli {
namespace {

TEST(BenchOptions, OutOfBoundsAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> refused{
      {"--bits", "9"},    {"--bits", "7"},       {"--bits", "-3"},    {"--group", "7"},      {"--group", "-1"},
      {"--window", "0"},  {"--window", "65"},    {"--threads", "-4"}, {"--threads", "4096"}, {"--streams", "1025"},
      {"--prompt", "0x"}, {"--context", "1e99"}, {"--rows", "-1"},    {"--tokens", "0"},     {"--repeats", "0"}};
  for (const auto& [option, value] : refused) {
    ::testing::internal::CaptureStderr();
    const int code = run_program({bench_command()}, {"bench", "--synthetic", "no-such-config.json", option, value});
    const std::string line = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, 1) << option << ' ' << value;
    EXPECT_THAT(line, ::testing::HasSubstr(option)) << value;
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
  }
}

}  // namespace
}  // namespace tensorfold::cli
