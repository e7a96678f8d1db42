#include "hub/names.h"

#include <string>

#include <gtest/gtest.h>

namespace tensorfold::hub {
namespace {

TEST(RepoNames, OneSlashAndPlainCharactersMakeARepository) {
  const auto repo = parse_repo("mlx-community/Qwen3.8_27B-4bit");
  ASSERT_TRUE(repo);
  EXPECT_EQ(repo->owner, "mlx-community");
  EXPECT_EQ(repo->name, "Qwen3.8_27B-4bit");
  EXPECT_EQ(repo->revision_or_main(), "main");
  EXPECT_EQ(repo->folder(), "models--mlx-community--Qwen3.8_27B-4bit");
}

TEST(RepoNames, ARevisionFollowsTheAtSign) {
  EXPECT_EQ(parse_repo("a/b@v1.0")->revision, "v1.0");
  EXPECT_EQ(parse_repo("a/b@refs/pr/3")->revision, "refs/pr/3");
  EXPECT_FALSE(parse_repo("a/b@"));
  EXPECT_FALSE(parse_repo("a/b@../x"));
  EXPECT_FALSE(parse_repo("a/b@/x"));
  EXPECT_FALSE(parse_repo("a/b@-x"));
}

TEST(RepoNames, AnythingElseIsNoRepository) {
  for (const char* text :
       {"",     "/",    "a",     "a/",    "/b",          "a/b/c",  "./a", "../a",  "a/..",   "-a/b",
        "a/.b", "_a/b", "a b/c", "a/b c", "https://x/y", "a\\b/c", "ä/b", "a/b\n", "a--b/c", "a/b--c"})
    EXPECT_FALSE(parse_repo(text)) << text;
}

TEST(FileNames, OrdinaryNamesAreSafe) {
  for (const char* name : {"config.json", "a/b/c.safetensors", ".gitattributes", "with blank.txt", "..a", "ü.json"})
    EXPECT_TRUE(is_safe_file_name(name)) << name;
}

TEST(FileNames, NamesThatLeaveTheirFolderAreNot) {
  for (const char* name : {"", "/etc/passwd", "../x", "a/../x", "a/..", "a//b", "a/", "./a", "a\\b", "a\nb", "..", "."})
    EXPECT_FALSE(is_safe_file_name(name)) << name;
  EXPECT_FALSE(is_safe_file_name(std::string("a\0b", 3)));
  EXPECT_FALSE(is_safe_file_name(std::string(256, 'a')));
}

TEST(FileNames, PercentEncodingKeepsOnlyUnreservedCharacters) {
  EXPECT_EQ(percent_encoded("a b/c#?%.json", true), "a%20b/c%23%3F%25.json");
  EXPECT_EQ(percent_encoded("refs/pr/1", false), "refs%2Fpr%2F1");
}

}  // namespace
}  // namespace tensorfold::hub
