// No include may point against the arrows between the parts. DESIGN names the arrows; this table is their one copy in
// code, and it must agree with the DEPENDS lines of the build.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared_data.h"

namespace tensorfold {
namespace {

namespace fs = std::filesystem;

/// What each part may include besides itself. Implementations of the backend are reached through its interface only;
/// engine may not see them, the command line picks one.
const std::map<std::string, std::set<std::string>>& arrows() {
  static const std::map<std::string, std::set<std::string>> table = {
      {"base", {}},
      {"format", {"base"}},
      {"backend", {"format", "base"}},
      {"families", {"backend", "format", "base"}},
      {"drafters", {"families", "backend", "format", "base"}},
      {"engine", {"drafters", "families", "backend", "format", "base"}},
      {"text", {"base"}},
      {"server", {"text", "engine", "drafters", "families", "backend", "format", "base"}},
      {"hub", {"base"}},
      {"cli", {"hub", "server", "text", "engine", "drafters", "families", "backend", "format", "base"}},
  };
  return table;
}

/// Libraries that only some parts may see.
const std::map<std::string, std::set<std::string>>& guarded_libraries() {
  static const std::map<std::string, std::set<std::string>> table = {
      {"boost/", {"server"}}, {"CLI/", {"cli"}}, {"curl/", {"hub"}}, {"pcre2", {"text"}}, {"cuda", {"backend"}}};
  return table;
}

/// The includes of a source text, with comments left aside: {path, quoted}.
std::vector<std::pair<std::string, bool>> includes_of(const std::string& text) {
  static const std::regex pattern(R"re(^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>))re");
  std::vector<std::pair<std::string, bool>> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_search(line, match, pattern)) continue;
    found.emplace_back(match[1].matched ? match[1].str() : match[2].str(), match[1].matched);
  }
  return found;
}

/// Everything that is wrong with the includes of one file of `part`.
std::vector<std::string> violations(const std::string& file, const std::string& part, const std::string& text) {
  std::vector<std::string> wrong;
  const auto allowed = arrows().find(part);
  if (allowed == arrows().end()) return {file + ": the part '" + part + "' has no place in the arrows"};
  for (const auto& [path, quoted] : includes_of(text)) {
    for (const auto& [library, parts] : guarded_libraries()) {
      if (path.rfind(library, 0) == 0 && !parts.contains(part)) wrong.push_back(file + " includes <" + path + ">");
    }
    if (!quoted) continue;
    const std::string target = path.substr(0, path.find('/'));
    if (path.find('/') == std::string::npos || !arrows().contains(target)) {
      wrong.push_back(file + " includes \"" + path + "\", which is not written from src/");
    } else if (target != part && !allowed->second.contains(target)) {
      wrong.push_back(file + " includes \"" + path + "\": " + part + " may not see " + target);
    }
    const bool implementation = path.rfind("backend/cpu/", 0) == 0 || path.rfind("backend/cuda/", 0) == 0;
    if (implementation && part != "backend" && part != "cli") {
      wrong.push_back(file + " includes \"" + path + "\", which only the backend may see");
    }
  }
  return wrong;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> endings = {".h", ".cpp", ".cu", ".cuh", ".inc"};
  return endings.contains(path.extension().string());
}

TEST(IncludeArrows, EveryIncludePointsTheRightWay) {
  const fs::path root = testing::project_path("src");
  std::vector<std::string> wrong;
  int files = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file() || !is_source(entry.path())) continue;
    const fs::path relative = fs::relative(entry.path(), root);
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    for (std::string& one : violations(relative.string(), relative.begin()->string(), text.str())) {
      wrong.push_back(std::move(one));
    }
    ++files;
  }
  EXPECT_GT(files, 5);
  EXPECT_THAT(wrong, ::testing::IsEmpty());
}

TEST(IncludeArrows, APlantedWrongIncludeIsFound) {
  EXPECT_EQ(violations("text/x.cpp", "text", "#include \"engine/engine.h\"\n").size(), 1U);
  EXPECT_EQ(violations("base/x.h", "base", "  #  include \"format/tensor_store.h\"\n").size(), 1U);
  EXPECT_EQ(violations("engine/x.h", "engine", "#include \"server/server.h\"\n").size(), 1U);
  EXPECT_EQ(violations("engine/x.h", "engine", "#include \"backend/cpu/cpu_backend.h\"\n").size(), 1U);
  EXPECT_EQ(violations("engine/x.h", "engine", "#include <boost/asio.hpp>\n").size(), 1U);
  EXPECT_EQ(violations("engine/x.h", "engine", "#include \"engine.h\"\n").size(), 1U);
  EXPECT_EQ(violations("engine/x.h", "engine", "#include \"engine/request.h\"\n#include <vector>\n").size(), 0U);
}

/// DEPENDS of each tensorfold_part() line, with what they pull in.
std::map<std::string, std::set<std::string>> build_arrows() {
  std::map<std::string, std::set<std::string>> direct;
  const std::regex pattern(R"(tensorfold_part\((\w+)(?:\s+DEPENDS((?:\s+[a-z_]+)*))?)");
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(testing::project_path("src"))) {
    if (entry.path().filename() != "CMakeLists.txt") continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const std::string content = text.str();
    for (std::sregex_iterator match(content.begin(), content.end(), pattern), end; match != end; ++match) {
      std::istringstream words((*match)[2].str());
      std::set<std::string>& targets = direct[(*match)[1].str()];
      for (std::string word; words >> word;) targets.insert(word);
    }
  }
  return direct;
}

TEST(IncludeArrows, TheBuildHasNoOtherArrows) {
  const auto direct = build_arrows();
  EXPECT_GE(direct.size(), 8U);
  for (const auto& [part, targets] : direct) {
    if (part == "cpu" || part == "cuda") {
      EXPECT_THAT(targets, ::testing::Each(::testing::AnyOf("backend", "format", "base"))) << part;
      continue;
    }
    ASSERT_TRUE(arrows().contains(part)) << part;
    for (const std::string& target : targets)
      EXPECT_TRUE(arrows().at(part).contains(target)) << part << " -> " << target;
  }
}

}  // namespace
}  // namespace tensorfold
