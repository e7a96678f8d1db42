// From a built tree to an installed release: scripts/pack-release packs and signs, a server publishes, update installs.
#include "cli/update.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/version.h"
#include "hub/hub_fixture.h"
#include "hub/release.h"
#include "shared_data.h"

namespace tensorfold::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using testing::read_file;
using testing::write_file;

/// Standard output of a shell command, without its last line end; nothing when it fails.
std::optional<std::string> shell(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string output;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output += static_cast<char>(c);
  if (::pclose(pipe) != 0) return std::nullopt;
  while (output.ends_with('\n')) output.pop_back();
  return output;
}

constexpr const char* kOldProgram = "#!/bin/sh\necho old\n";

class PackedRelease : public ::testing::Test {
 protected:
  void SetUp() override {
    build_ = fs::read_symlink("/proc/self/exe").parent_path().parent_path();
    for (const char* tool : {"openssl", "jq", "cpack", "tar"})
      if (!shell(std::string("command -v ") + tool)) GTEST_SKIP() << tool << " is not installed";
    if (!fs::exists(build_ / "src/cli/tensorfold")) GTEST_SKIP() << "the program itself is not built";
    key_file_ = (folder_.path() / "key.pem").string();
    ASSERT_TRUE(shell("openssl genpkey -algorithm ED25519 -out " + key_file_));
    const auto key = shell(script() + " --public " + key_file_);
    ASSERT_TRUE(key);
    const auto package = shell(script() + " " + key_file_ + " " + build_.string() + " " + release().string());
    ASSERT_TRUE(package);
    package_ = fs::path(*package).filename();
    write_file(prefix_ / "bin/tensorfold", kOldProgram);
    write_file(prefix_ / "models/precious", "weights");
    publish(json::parse(read_file(release() / "releases.json")));
    source_ = {hub_.endpoint() + "/releases.json", *key, "0.0.1", prefix_ / "bin/tensorfold"};
  }

  static std::string script() { return testing::project_path("scripts/pack-release").string(); }
  [[nodiscard]] fs::path release() const { return folder_.path() / "release"; }

  void publish(const json& list) {
    hub_.set_document("/releases.json", list.dump());
    hub_.set_document("/" + package_, read_file(release() / package_));
  }

  /// The error of an update that must leave everything as it was.
  std::string refused() {
    std::string words;
    try {
      update_program(source_, false, false);
      ADD_FAILURE() << "installed";
    } catch (const Error& error) {
      words = error.what();
    }
    EXPECT_EQ(read_file(prefix_ / "bin/tensorfold"), kOldProgram);
    EXPECT_FALSE(fs::exists(prefix_ / "share"));
    return words;
  }

  testing::TemporaryFolder folder_;
  fs::path prefix_ = folder_.path() / "prefix";
  fs::path build_;
  std::string key_file_;
  std::string package_;
  testing::TestHub hub_;
  UpdateSource source_;
};

TEST_F(PackedRelease, IsWhatUpdateInstallsAndNothingElse) {
  json list = json::parse(read_file(release() / "releases.json"));
  EXPECT_EQ(list["version"], version());
  EXPECT_TRUE(list["packages"].contains(hub::platform_name())) << list.dump();

  ::testing::internal::CaptureStdout();
  EXPECT_EQ(update_program(source_, true, false), 0);
  std::fflush(stdout);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("is out (this is 0.0.1)"));
  EXPECT_EQ(read_file(prefix_ / "bin/tensorfold"), kOldProgram);

  const std::string& platform = hub::platform_name();
  const auto changed = [&](const char* key, const json& value) {
    json other = list;
    other["packages"][platform][key] = value;
    publish(other);
    return refused();
  };
  const auto& package = list["packages"][platform];
  EXPECT_THAT(changed("sha256", std::string(64, 'a')), HasSubstr("wrong signature"));
  EXPECT_THAT(changed("size", package["size"].get<uint64_t>() + 1), HasSubstr("wrong signature"));
  std::string signature = package["signature"];
  signature[3] = signature[3] == 'A' ? 'B' : 'A';
  EXPECT_THAT(changed("signature", signature), HasSubstr("wrong signature"));
  json renamed = list;
  renamed["version"] = "99.0.0";  // the same package under a newer name
  publish(renamed);
  EXPECT_THAT(refused(), HasSubstr("wrong signature"));
  publish(list);
  std::string damaged = read_file(release() / package_);
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  hub_.set_document("/" + package_, damaged);
  EXPECT_THAT(refused(), HasSubstr("SHA-256"));
  publish(list);

  ::testing::internal::CaptureStdout();
  UpdateSource newest = source_;
  newest.version = "99.0.0";
  EXPECT_EQ(update_program(newest, false, false), 0);
  EXPECT_EQ(read_file(prefix_ / "bin/tensorfold"), kOldProgram) << "an older release is not installed";
  EXPECT_EQ(update_program(source_, false, false), 0);
  std::fflush(stdout);
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(said, HasSubstr("99.0.0 is the newest version"));
  EXPECT_THAT(said, HasSubstr("updated 0.0.1 -> " + std::string(version())));
  const std::string program = (prefix_ / "bin/tensorfold").string();
  EXPECT_EQ(shell(program + " --version"), "tensorfold " + std::string(version()));
  EXPECT_EQ(shell(program + " completions bash"),
            shell("cat " + (prefix_ / "share/bash-completion/completions/tensorfold").string()));
  EXPECT_TRUE(fs::exists(prefix_ / "share/man/man1/tensorfold.1"));
  EXPECT_EQ(read_file(prefix_ / "models/precious"), "weights");
}

}  // namespace
}  // namespace tensorfold::cli
