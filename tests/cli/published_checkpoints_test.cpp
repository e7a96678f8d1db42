// `info` and `plan` give each published checkpoint's sizes from its config.json alone, within 1 %.
#include "cli/published_checkpoints.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "cli/commands.h"
#include "families/model.h"

namespace tensorfold::cli {
namespace {

using ::testing::HasSubstr;
using testing::PublishedCheckpoint;

class Published : public ::testing::TestWithParam<PublishedCheckpoint> {
 protected:
  Published() {
    folder_ = std::filesystem::temp_directory_path() / ("tensorfold-published-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << GetParam().config.dump();
  }
  ~Published() override { std::filesystem::remove_all(folder_); }

  /// Standard output of a command on the folder.
  std::string run(std::vector<std::string> arguments, int expected_code) {
    arguments.insert(arguments.begin() + 1, folder_.string());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int code = run_program(all_commands(), arguments);
    std::fflush(stdout);
    const std::string output = ::testing::internal::GetCapturedStdout();
    const std::string errors = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, expected_code) << output << errors;
    return output;
  }

  /// The first number that `pattern` captures, in bytes of its unit (B, kB, MB, GB).
  static double bytes_in(const std::string& text, const std::string& pattern) {
    std::smatch match;
    if (!std::regex_search(text, match, std::regex(pattern + "([0-9.]+) (kB|MB|GB)"))) {
      ADD_FAILURE() << "no " << pattern << " in\n" << text;
      return 0;
    }
    const double unit = match[2] == "kB" ? 1e3 : match[2] == "MB" ? 1e6 : 1e9;
    return std::stod(match[1]) * unit;
  }

  static void expect_within_a_hundredth(double got, double published) { EXPECT_NEAR(got, published, published / 100); }

  std::filesystem::path folder_;
};

TEST_P(Published, HasItsSizes) {
  const PublishedCheckpoint& published = GetParam();
  if (families::find_family(published.config) == nullptr)
    GTEST_SKIP() << "no family here serves " << published.config["model_type"];
  const std::string info = run({"info"}, 0);
  expect_within_a_hundredth(bytes_in(info, "\nweights +"), published.weights);
  if (published.read > 0) expect_within_a_hundredth(bytes_in(info, "\nweights .*, "), published.read);
  if (published.draft_head > 0) expect_within_a_hundredth(bytes_in(info, "\ndraft head +"), published.draft_head);
  if (!published.side_file.empty()) {
    EXPECT_THAT(info, HasSubstr(published.side_file));
  }
  std::stringstream lines(info);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;

  const std::string plan = run({"plan", "--backend", "cpu", "--memory-gib", "4000", "--context", "32768"}, 0);
  const bool has_head = info.find("\ndraft head        none") == std::string::npos;
  const double head = has_head ? bytes_in(info, "\ndraft head +") : 0;
  expect_within_a_hundredth(bytes_in(plan, "\nweights +"), published.weights - published.on_disk + head);
  if (published.cache_token > 0)  // this plan is for 32-bit caches and counts the draft head's layer
    expect_within_a_hundredth(bytes_in(plan, "\na token's cache +"), 2 * published.cache_token);
  EXPECT_THAT(run({"plan", "--backend", "cpu", "--memory-gib", "4"}, 1), HasSubstr("would fit"));
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Published, ::testing::ValuesIn(testing::published_checkpoints()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace tensorfold::cli
