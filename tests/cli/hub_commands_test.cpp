// pull and rm as a user types them, against a hub of our own.
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands.h"
#include "cli/draft_models.h"
#include "cli/hub_access.h"
#include "cli/published_checkpoints.h"
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

TEST_F(HubCommands, InfoAndPlanNeedNoWeights) {
  auto files = files_;
  files.erase("model.safetensors");
  serve("ORG/Headers", files, "mit");
  EXPECT_EQ(run({"info", "ORG/Headers"}), 0) << errors_;
  EXPECT_THAT(output_, AllOf(HasSubstr("served            yes"), HasSubstr("an untested conversion"),
                             HasSubstr("TensorFold/Qwen3.8-27B-MLX-4bit")));
  EXPECT_EQ(run({"plan", "ORG/Headers", "--context", "64"}), 0) << errors_ << output_;
  EXPECT_EQ(run({"serve", "ORG/Headers", "--context", "64"}), 1);
  EXPECT_THAT(errors_, HasSubstr("no *.safetensors files"));
}

TEST_F(HubCommands, InfoSaysOfAnUnservedModelWhatItIsAndWhyItIsNotServed) {
  auto files = files_;
  files["config.json"] = plain_file(R"({"model_type":"llama","architectures":["LlamaForCausalLM"],
    "num_hidden_layers":32,"hidden_size":4096,"vocab_size":128256,"quantization_config":{"quant_method":"gptq"}})");
  serve("ORG/Other", files, "mit");
  EXPECT_EQ(run({"info", "ORG/Other"}), 1);
  EXPECT_THAT(output_, AllOf(HasSubstr("LlamaForCausalLM"), HasSubstr("128256"), HasSubstr("gptq"),
                             HasSubstr("served            no: "), HasSubstr("qwen3_5")));
  EXPECT_FALSE(asked_for("/signed/"));
}

/// The published 27B with more and wider layers: terabytes.
std::string vast_config() {
  auto config = testing::qwen_27b_config(testing::affine(4, 64));
  config["text_config"]["num_hidden_layers"] = 1'000;
  config["text_config"]["intermediate_size"] = 1'000'000;
  return config.dump();
}

TEST_F(HubCommands, AModelLargerThanThisMachinesMemoryIsRefusedBeforeItsWeights) {
  auto files = files_;
  files["config.json"] = plain_file(vast_config());
  serve("ORG/Vast", files, "mit");
  for (const char* command : {"pull", "serve", "generate"}) {
    std::vector<std::string> arguments = {command, "ORG/Vast"};
    if (command == std::string("generate")) arguments.insert(arguments.end(), {"--prompt", "x"});
    EXPECT_EQ(run(arguments), 1);
    EXPECT_THAT(errors_, AllOf(HasSubstr("ORG/Vast needs 8"), HasSubstr(" GB "), HasSubstr("tensorfold p")));
    EXPECT_FALSE(asked_for("/signed/"));
  }
  EXPECT_EQ(run({"pull", "ORG/Vast", "--unchecked"}), 0) << errors_;
}

TEST_F(HubCommands, AMissingDraftModelIsSaidWithTheCommandThatGetsIt) {
  families::CheckpointReport report;
  report.info.model_type = "qwen3_5";
  report.info.hidden_size = 5120;
  report.info.layers = 64;
  EXPECT_THAT(draft_hints(report), ::testing::ElementsAre(HasSubstr("`tensorfold pull z-lab/Qwen3.8-27B-DFlash2`")));
  EXPECT_EQ(cached_drafter(report.info), std::nullopt);
  auto files = files_;
  files["config.json"] = plain_file(R"({"model_type":"dflash","dflash_config":{}})");
  serve("z-lab/Qwen3.8-27B-DFlash2", files, "cc-by-nc-4.0");
  ASSERT_EQ(run({"pull", "z-lab/Qwen3.8-27B-DFlash2"}), 0) << errors_;
  EXPECT_THAT(output_, HasSubstr("not for commercial use"));
  EXPECT_TRUE(cached_drafter(report.info).has_value());
  EXPECT_TRUE(draft_hints(report).empty());
}

/// The golden Nemotron checkpoint on the hub, whose draft head lies in a side file.
class OlderCache : public HubCommands {
 protected:
  OlderCache() {
    const fs::path golden = testing::project_path("tests/golden/nemotron_h/mlx4");
    files_.clear();
    for (const char* name : {"config.json", "model.safetensors.index.json"})
      files_[name] = plain_file(read_file(golden / name));
    for (const char* name : {"model.safetensors", "mtp-4bit.safetensors"})
      files_[name] = lfs_file(read_file(golden / name));
    older_ = files_;
    older_.erase("mtp-4bit.safetensors");
    serve("ORG/Nemotron", older_, "mit");
    EXPECT_EQ(run({"pull", "ORG/Nemotron"}), 0) << errors_;
    hub_.forget_requests();
  }

  /// The hub's main branch moves to `files`.
  void publish(const std::map<std::string, testing::HubFile>& files) {
    hub_.change_repo("ORG/Nemotron", [&](testing::HubRepo& repo) {
      repo.revisions["main"] = commit_of('b');
      repo.commits[commit_of('b')] = files;
    });
  }

  std::string completed() {
    ::testing::internal::CaptureStderr();
    const fs::path directory = with_draft_head("ORG/Nemotron", *cached_model("ORG/Nemotron"));
    errors_ = ::testing::internal::GetCapturedStderr();
    return directory.filename().string();
  }

  std::map<std::string, testing::HubFile> older_;
};

TEST_F(OlderCache, IsCompletedWithTheDraftHeadThatWasPublishedLater) {
  publish(files_);
  EXPECT_EQ(completed(), commit_of('b'));
  EXPECT_THAT(errors_, HasSubstr("completed with its draft head"));
  const fs::path snapshot = *cached_model("ORG/Nemotron");
  EXPECT_EQ(snapshot.filename(), commit_of('b'));
  EXPECT_EQ(read_file(snapshot / "mtp-4bit.safetensors"), *files_["mtp-4bit.safetensors"].content);
  EXPECT_FALSE(asked_for("/model.safetensors")) << "what was here is not fetched again";
  hub_.forget_requests();
  EXPECT_EQ(completed(), commit_of('b'));
  EXPECT_TRUE(hub_.requests().empty()) << "a complete model asks nobody";
}

TEST_F(OlderCache, OfTheSameRevisionIsCompletedInItsPlace) {
  hub_.change_repo("ORG/Nemotron", [&](testing::HubRepo& repo) { repo.commits[commit_of('a')] = files_; });
  EXPECT_EQ(completed(), commit_of('a'));
  EXPECT_TRUE(fs::exists(*cached_model("ORG/Nemotron") / "mtp-4bit.safetensors"));
}

TEST_F(OlderCache, IsServedAsItIsWhenTheHubHasOtherWeightsByNow) {
  auto files = files_;
  files["model.safetensors"] = lfs_file("quite other weights");
  publish(files);
  EXPECT_EQ(completed(), commit_of('a'));
  EXPECT_FALSE(asked_for("/signed/"));
}

TEST_F(OlderCache, IsServedAsItIsWithoutANetwork) {
  ::setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1);
  EXPECT_EQ(completed(), commit_of('a'));
  EXPECT_THAT(errors_, HasSubstr("could not be fetched"));
  EXPECT_EQ(std::count(errors_.begin(), errors_.end(), '\n'), 1);
  ::setenv("HF_HUB_OFFLINE", "1", 1);
  EXPECT_EQ(completed(), commit_of('a'));
  EXPECT_EQ(errors_, "");
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
