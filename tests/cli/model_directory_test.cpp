// What a user types for MODEL and does not mean: one line that says what it is and what to do.
#include "cli/model_directory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"

namespace tensorfold::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ModelArguments : public ::testing::Test {
 protected:
  ModelArguments() {
    folder_ = fs::temp_directory_path() / ("tensorfold-arguments-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  ~ModelArguments() override { fs::remove_all(folder_); }

  void touch(const std::string& name) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << "x";
  }

  /// The line for `model`, from both ways in.
  static std::string refusal(const std::string& model) {
    std::string line;
    for (auto* resolve : {&model_directory, &config_directory}) {
      try {
        resolve(model);
        ADD_FAILURE() << model << " was taken";
      } catch (const Error& error) {
        line = error.what();
      }
    }
    return line;
  }

  fs::path folder_;
};

TEST_F(ModelArguments, AFolderThatIsNoCheckpointIsCalledWhatItIs) {
  EXPECT_THAT(refusal(folder_), AllOf(HasSubstr("is empty"), HasSubstr("config.json")));
  touch("model.gguf");
  EXPECT_THAT(refusal(folder_), AllOf(HasSubstr("GGUF files, which are not read"), HasSubstr("`tensorfold models`")));
  EXPECT_THAT(refusal(folder_ / "model.gguf"), AllOf(HasSubstr("is a file"), HasSubstr("GGUF")));
  touch("cache/snapshots/abc/config.json");
  EXPECT_THAT(refusal(folder_ / "cache"), HasSubstr("owner/name"));
  touch("other/notes.txt");
  EXPECT_THAT(refusal(folder_ / "other"), HasSubstr("has no config.json"));
}

TEST_F(ModelArguments, AWordThatNamesNothingIsSaidSo) {
  EXPECT_THAT(refusal(folder_ / "none"), HasSubstr("there is no folder"));
  EXPECT_THAT(refusal("./none"), HasSubstr("there is no folder ./none"));
  EXPECT_THAT(refusal("gpt2"), HasSubstr("neither a folder nor a repository's name"));
  EXPECT_THAT(refusal("https://huggingface.co/ORG/Model"), HasSubstr("by its name alone: ORG/Model"));
}

TEST_F(ModelArguments, AFolderWithAConfigIsTaken) {
  touch("config.json");
  EXPECT_EQ(model_directory(folder_), folder_);
  EXPECT_EQ(config_directory(folder_), folder_);
}

}  // namespace
}  // namespace tensorfold::cli
