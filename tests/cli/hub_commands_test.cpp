// pull and rm as a user types them, against a hub of our own.
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands.h"
#include "hub/hub_fixture.h"
#include "shared_data.h"

namespace tensorfold::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::commit_of;
using ::testing::HasSubstr;
using testing::lfs_file;
using ::testing::Not;
using testing::plain_file;
using testing::read_file;

/// The golden checkpoint of a family as `ORG/Golden` on a hub, and an environment that points there.
class HubCommands : public ::testing::Test {
 protected:
  HubCommands() {
    const fs::path golden = testing::project_path("tests/golden/qwen3_5/mlx4");
    files_ = {{"config.json", plain_file(read_file(golden / "config.json"))},
              {"model.safetensors", lfs_file(read_file(golden / "model.safetensors"))},
              {"model.safetensors.index.json", plain_file(read_file(golden / "model.safetensors.index.json"))}};
    serve("ORG/Golden", files_, "apache-2.0");
    ::setenv("HF_ENDPOINT", hub_.endpoint().c_str(), 1);
    ::setenv("HF_HUB_CACHE", (folder_.path() / "hub").c_str(), 1);
    ::setenv("HF_HOME", folder_.path().c_str(), 1);
    for (const char* name : {"HF_TOKEN", "HF_HUB_OFFLINE", "TENSORFOLD_RELEASES"}) ::unsetenv(name);
  }
  ~HubCommands() override {
    for (const char* name : {"HF_ENDPOINT", "HF_HUB_CACHE", "HF_HOME", "HF_HUB_OFFLINE"}) ::unsetenv(name);
  }

  void serve(const std::string& id, const std::map<std::string, testing::HubFile>& files, const std::string& license) {
    testing::HubRepo repo;
    repo.revisions["main"] = commit_of('a');
    repo.commits[commit_of('a')] = files;
    repo.license = license;
    hub_.set_repo(id, repo);
  }

  int run(const std::vector<std::string>& arguments) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int code = run_program(all_commands(), arguments);
    std::fflush(stdout);
    output_ = ::testing::internal::GetCapturedStdout();
    errors_ = ::testing::internal::GetCapturedStderr();
    return code;
  }

  [[nodiscard]] bool asked_for(const std::string& part) const {
    for (const auto& request : hub_.requests())
      if (request.path.find(part) != std::string::npos) return true;
    return false;
  }

  testing::TemporaryFolder folder_;
  testing::TestHub hub_;
  std::map<std::string, testing::HubFile> files_;
  std::string output_;
  std::string errors_;
};

TEST_F(HubCommands, PullFetchesAModelAndSaysWhereItIs) {
  ASSERT_EQ(run({"pull", "ORG/Golden"}), 0) << errors_;
  const fs::path snapshot = folder_.path() / "hub/models--ORG--Golden/snapshots" / commit_of('a');
  EXPECT_THAT(output_, AllOf(HasSubstr("ORG/Golden is ready"), HasSubstr(snapshot.string())));
  EXPECT_EQ(read_file(snapshot / "model.safetensors"), *files_["model.safetensors"].content);
  ASSERT_EQ(run({"pull", "ORG/Golden"}), 0);
  EXPECT_THAT(output_, HasSubstr("0 B fetched now"));
}

TEST_F(HubCommands, AnUnknownFamilyIsRefusedBeforeItsWeights) {
  auto files = files_;
  files["config.json"] = plain_file(R"({"model_type":"gpt_bigcode"})");
  serve("ORG/Other", files, "mit");
  EXPECT_EQ(run({"pull", "ORG/Other"}), 1);
  EXPECT_THAT(errors_, AllOf(HasSubstr("gpt_bigcode"), HasSubstr("ORG/Other")));
  EXPECT_FALSE(asked_for("model.safetensors?"));
  EXPECT_FALSE(asked_for("/resolve/" + commit_of('a') + "/model.safetensors ") || asked_for("/signed/"));
  EXPECT_EQ(run({"pull", "--unchecked", "ORG/Other"}), 0) << errors_;
}

TEST_F(HubCommands, ADraftersConfigPassesAndItsLicenceIsSaid) {
  auto files = files_;
  files["config.json"] = plain_file(R"({"model_type":"dflash","dflash_config":{}})");
  serve("ORG/Drafter", files, "cc-by-nc-4.0");
  EXPECT_EQ(run({"pull", "ORG/Drafter"}), 0) << errors_;
  EXPECT_THAT(output_, HasSubstr("cc-by-nc-4.0: not for commercial use"));
}

TEST_F(HubCommands, SeveralNamesAreCheckedBeforeTheFirstIsFetched) {
  EXPECT_EQ(run({"pull", "ORG/Golden", "no-such-thing"}), 1);
  EXPECT_THAT(errors_, HasSubstr("no-such-thing"));
  EXPECT_TRUE(hub_.requests().empty());
}

TEST_F(HubCommands, RemovingNeedsAYesAndFreesTheModel) {
  ASSERT_EQ(run({"pull", "ORG/Golden"}), 0);
  EXPECT_EQ(run({"rm", "ORG/None"}), 1);
  EXPECT_EQ(run({"rm", "ORG/Golden", "--yes"}), 0) << errors_;
  EXPECT_THAT(output_, HasSubstr("freed"));
  EXPECT_FALSE(fs::exists(folder_.path() / "hub/models--ORG--Golden"));
  EXPECT_EQ(run({"rm", "ORG/Golden", "--yes"}), 1);
}

TEST_F(HubCommands, FailuresAreOneLineAndExitCodeOne) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"pull", "ORG/None"}, {"pull", "a/b/c"}, {"rm", "x"}, {"update"}}) {
    EXPECT_EQ(run(arguments), 1);
    EXPECT_TRUE(errors_.starts_with("tensorfold: ")) << errors_;
    EXPECT_EQ(std::count(errors_.begin(), errors_.end(), '\n'), 1) << errors_;
  }
}

}  // namespace
}  // namespace tensorfold::cli
