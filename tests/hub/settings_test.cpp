#include "hub/settings.h"

#include <map>
#include <string>

#include "hub/hub_fixture.h"

namespace tensorfold::hub {
namespace {

using testing::TemporaryFolder;
using testing::write_file;

Settings settings_of(const std::map<std::string, std::string>& variables) {
  return Settings::from_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(HubSettings, TheCacheIsWhereThePythonToolsPutIt) {
  EXPECT_EQ(settings_of({{"HOME", "/h"}}).cache_root, "/h/.cache/huggingface/hub");
  EXPECT_EQ(settings_of({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}).cache_root, "/x/huggingface/hub");
  EXPECT_EQ(settings_of({{"HOME", "/h"}, {"HF_HOME", "/f"}, {"XDG_CACHE_HOME", "/x"}}).cache_root, "/f/hub");
  EXPECT_EQ(settings_of({{"HF_HOME", "/f"}, {"HF_HUB_CACHE", "/c"}}).cache_root, "/c");
  EXPECT_EQ(settings_of({{"HF_HOME", "/f"}, {"HUGGINGFACE_HUB_CACHE", "/c"}}).cache_root, "/c");
  EXPECT_EQ(settings_of({{"HOME", "/h"}, {"HF_HOME", "~/f"}}).cache_root, "/h/f/hub");
}

TEST(HubSettings, TheEndpointLosesItsSlashesAndHasToBeAUrl) {
  EXPECT_EQ(settings_of({}).endpoint, "https://huggingface.co");
  EXPECT_EQ(settings_of({{"HF_ENDPOINT", "https://mirror.example/"}}).endpoint, "https://mirror.example");
  EXPECT_THROW(settings_of({{"HF_ENDPOINT", "mirror.example"}}), Error);
}

TEST(HubSettings, OfflineTakesTheUsualWords) {
  for (const char* yes : {"1", "on", "YES", "True"}) EXPECT_TRUE(settings_of({{"HF_HUB_OFFLINE", yes}}).offline) << yes;
  for (const char* no : {"0", "off", "", "no"}) EXPECT_FALSE(settings_of({{"HF_HUB_OFFLINE", no}}).offline) << no;
}

TEST(HubSettings, TheTokenComesFromTheEnvironmentBeforeTheFile) {
  const TemporaryFolder folder;
  write_file(folder.path() / "token", "hf_file\n");
  EXPECT_EQ(settings_of({{"HF_HOME", folder.path()}}).token, "hf_file");
  const Settings both = settings_of({{"HF_HOME", folder.path()}, {"HF_TOKEN", " hf_variable\n"}});
  EXPECT_EQ(both.token, "hf_variable");
  EXPECT_EQ(both.token_source, "HF_TOKEN");
  EXPECT_FALSE(settings_of({{"HF_HOME", folder.path()}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}}).token);
  EXPECT_FALSE(settings_of({{"HF_HOME", folder.path() / "none"}}).token);
}

TEST(HubSettings, ATokenFileThatIsAFolderIsNamed) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "token");
  try {
    settings_of({{"HF_HOME", folder.path()}});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find((folder.path() / "token").string() + " is a folder"), std::string::npos);
  }
}

TEST(HubSettings, ATokenCannotSmuggleAHeaderIn) {
  EXPECT_THROW(settings_of({{"HF_TOKEN", "hf_a\r\nX-Other: 1"}}), Error);
}

}  // namespace
}  // namespace tensorfold::hub
