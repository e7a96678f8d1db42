// What can be checked of Containerfile without building it: its instructions, its sources, its commands.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared_data.h"

namespace tensorfold::cli {
namespace {

/// The instructions, continued lines joined, comments left out.
std::vector<std::string> instructions() {
  std::ifstream in(testing::project_path("Containerfile"));
  std::vector<std::string> all;
  std::string joined;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line.front() == '#') continue;
    const bool continues = line.back() == '\\';
    if (continues) line.pop_back();
    joined += line;
    if (continues) continue;
    all.push_back(joined);
    joined.clear();
  }
  EXPECT_TRUE(joined.empty()) << "the last line is continued";
  return all;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

TEST(ContainerFile, HasInstructionsInTheirOrder) {
  static const std::regex known("(ARG|FROM|COPY|WORKDIR|RUN|USER|ENV|VOLUME|EXPOSE|STOPSIGNAL|ENTRYPOINT|CMD) .+");
  bool from = false;
  for (const std::string& line : instructions()) {
    EXPECT_TRUE(std::regex_match(line, known)) << line;
    from |= line.starts_with("FROM ");
    EXPECT_TRUE(from || line.starts_with("ARG ")) << line;
  }
  EXPECT_TRUE(from);
}

TEST(ContainerFile, CopiesWhatIsThere) {
  std::vector<std::string> stages;
  for (const std::string& line : instructions()) {
    const std::vector<std::string> words = words_of(line);
    if (words[0] == "FROM" && words.size() == 4) stages.push_back(words[3]);
    if (words[0] != "COPY") continue;
    ASSERT_GE(words.size(), 3u) << line;
    if (words[1].starts_with("--from=")) {
      EXPECT_NE(std::find(stages.begin(), stages.end(), words[1].substr(7)), stages.end()) << line;
      continue;
    }
    for (size_t i = 1; i + 1 < words.size(); ++i)
      EXPECT_TRUE(std::filesystem::exists(testing::project_path(words[i]))) << line;
  }
}

TEST(ContainerFile, RunsCommandsThatAShellCanRead) {
  size_t commands = 0;
  for (const std::string& line : instructions()) {
    if (!line.starts_with("RUN ")) continue;
    ++commands;
    std::FILE* shell = ::popen("sh -n", "w");
    std::fputs(line.substr(4).c_str(), shell);
    EXPECT_EQ(::pclose(shell), 0) << line;
    EXPECT_EQ(line.find("sudo"), std::string::npos);
  }
  EXPECT_GE(commands, 3u);
}

TEST(ContainerFile, RunsAsAnAccountOfItsOwnAndInExecForm) {
  std::string user;
  for (const std::string& line : instructions()) {
    if (line.starts_with("USER ")) user = line.substr(5);
    if (line.starts_with("ENTRYPOINT ") || line.starts_with("CMD ")) {
      EXPECT_EQ(line[line.find(' ') + 1], '[') << line;
    }
  }
  EXPECT_EQ(user, "tensorfold");
}

}  // namespace
}  // namespace tensorfold::cli
