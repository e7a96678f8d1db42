#include "hub/release.h"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

#include <nlohmann/json.hpp>
#include <openssl/evp.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hub/digest.h"
#include "hub/hub_fixture.h"

namespace tensorfold::hub {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

std::string base64(const std::vector<unsigned char>& bytes) {
  std::string text(bytes.size() / 3 * 4 + 5, '\0');
  const int length =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes.data(), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(length));
  return text;
}

/// An Ed25519 key pair of this run.
class SigningKey {
 public:
  SigningKey() : key_(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), &EVP_PKEY_free) {}
  [[nodiscard]] std::string public_key() const {
    std::vector<unsigned char> bytes(32);
    size_t length = bytes.size();
    EVP_PKEY_get_raw_public_key(key_.get(), bytes.data(), &length);
    return base64(bytes);
  }
  [[nodiscard]] std::string sign(const std::string& text) const {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    std::vector<unsigned char> signature(64);
    size_t length = signature.size();
    EVP_DigestSignInit(context, nullptr, nullptr, nullptr, key_.get());
    EVP_DigestSign(context, signature.data(), &length, reinterpret_cast<const unsigned char*>(text.data()),
                   text.size());
    EVP_MD_CTX_free(context);
    return base64(signature);
  }

 private:
  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key_;
};

/// An installation in a temporary folder and a release of a package made of shell scripts.
class ReleaseTest : public ::testing::Test {
 protected:
  ReleaseTest() {
    write_file(prefix_ / "bin/tensorfold", "#!/bin/sh\necho old\n");
    write_file(prefix_ / "models/precious", "weights");
  }

  void publish(const std::string& version, const std::string& program) {
    const fs::path root = folder_.path() / ("tensorfold-" + version);
    write_file(root / "bin/tensorfold", program);
    fs::permissions(root / "bin/tensorfold", fs::perms::owner_all);
    write_file(root / "share/man/man1/tensorfold.1", "manual of " + version);
    const fs::path archive = folder_.path() / "package.tar.gz";
    const std::string command =
        "tar -czf " + archive.string() + " -C " + folder_.path().string() + " tensorfold-" + version;
    ASSERT_EQ(std::system(command.c_str()), 0);
    const std::string content = read_file(archive);
    hub_.set_document("/package.tar.gz", content);
    release_.version = version;
    release_.platform = platform_name();
    release_.size = content.size();
    release_.sha256 = testing::etag_of(content, true);
    release_.signature = key_.sign(release_.signed_text());
    list_ = {{"version", version},
             {"notes", "better"},
             {"packages",
              {{platform_name(),
                {{"url", "package.tar.gz"},
                 {"size", content.size()},
                 {"sha256", release_.sha256},
                 {"signature", release_.signature}}}}}};
    hub_.set_document("/releases.json", list_.dump());
  }

  [[nodiscard]] std::string list_url() const { return hub_.endpoint() + "/releases.json"; }
  [[nodiscard]] std::string installed() const { return read_file(prefix_ / "bin/tensorfold"); }

  static constexpr const char* kGood = "#!/bin/sh\necho tensorfold 9.0.0\n";

  TemporaryFolder folder_;
  fs::path prefix_ = folder_.path() / "prefix";
  testing::TestHub hub_;
  SigningKey key_;
  Release release_;
  json list_;
};

TEST(Versions, CompareByTheirNumbers) {
  EXPECT_TRUE(is_newer_version("0.10.0", "0.9.9"));
  EXPECT_TRUE(is_newer_version("v1.0.0", "0.99.99"));
  EXPECT_FALSE(is_newer_version("1.2.3", "1.2.3"));
  EXPECT_FALSE(is_newer_version("1.2.2", "1.2.3"));
  for (const char* odd : {"", "1", "1.2", "1.2.x", "1.2.3-rc", "latest"})
    EXPECT_FALSE(is_newer_version(odd, "0.0.1")) << odd;
}

TEST_F(ReleaseTest, ANewerReleaseIsInstalledAndNothingElseTouched) {
  publish("9.0.0", kGood);
  const Release found = fetch_release(list_url(), platform_name(), {});
  EXPECT_EQ(found.version, "9.0.0");
  EXPECT_EQ(found.url, hub_.endpoint() + "/package.tar.gz");
  check_signature(found, key_.public_key());
  install_release(found, prefix_, {});
  EXPECT_EQ(installed(), kGood);
  EXPECT_EQ(read_file(prefix_ / "share/man/man1/tensorfold.1"), "manual of 9.0.0");
  EXPECT_EQ(read_file(prefix_ / "models/precious"), "weights");
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(prefix_)) ++entries;
  EXPECT_EQ(entries, 3u) << "bin, models, share";
}

TEST_F(ReleaseTest, EveryPartOfARelatedStatementIsSigned) {
  publish("9.0.0", kGood);
  const Release good = fetch_release(list_url(), platform_name(), {});
  const auto refused = [&](auto change) {
    Release changed = good;
    change(changed);
    EXPECT_THROW(check_signature(changed, key_.public_key()), Error);
  };
  refused([](Release& release) { release.version = "9.0.1"; });
  refused([](Release& release) { release.platform = "linux-other"; });
  refused([](Release& release) { release.sha256[0] = release.sha256[0] == 'a' ? 'b' : 'a'; });
  refused([](Release& release) { ++release.size; });
  refused([](Release& release) { release.signature = ""; });
  refused([](Release& release) { release.signature = "no base64!"; });
  EXPECT_THROW(check_signature(good, SigningKey().public_key()), Error);
  EXPECT_THROW(check_signature(good, ""), Error);
  EXPECT_THROW(check_signature(good, "c2hvcnQ="), Error);
  EXPECT_NO_THROW(check_signature(good, key_.public_key()));
}

TEST_F(ReleaseTest, ADamagedPackageLeavesTheOldProgram) {
  publish("9.0.0", kGood);
  for (const auto kind : {testing::HubFault::Kind::corrupt, testing::HubFault::Kind::truncate,
                          testing::HubFault::Kind::wrong_length, testing::HubFault::Kind::status}) {
    hub_.add_fault({.kind = kind, .path = "package", .bytes = 20});
    EXPECT_THROW(install_release(fetch_release(list_url(), platform_name(), {}), prefix_, {}), Error);
    EXPECT_EQ(installed(), "#!/bin/sh\necho old\n");
  }
}

TEST_F(ReleaseTest, AProgramThatDoesNotStartHereLeavesTheOldOne) {
  publish("9.0.0", "#!/bin/sh\nexit 1\n");
  EXPECT_THROW(install_release(fetch_release(list_url(), platform_name(), {}), prefix_, {}), Error);
  EXPECT_EQ(installed(), "#!/bin/sh\necho old\n");
  EXPECT_FALSE(fs::exists(prefix_ / "share"));
}

TEST_F(ReleaseTest, WhatCannotBeReplacedBringsTheOldFilesBack) {
  write_file(prefix_ / "share/doc", "old document");
  publish("9.0.0", kGood);
  // A folder stands where the new manual has to go: some files are in place when that shows.
  fs::create_directories(prefix_ / "share/man/man1/tensorfold.1/occupied");
  EXPECT_THROW(install_release(fetch_release(list_url(), platform_name(), {}), prefix_, {}), Error);
  EXPECT_EQ(installed(), "#!/bin/sh\necho old\n");
  EXPECT_EQ(read_file(prefix_ / "share/doc"), "old document");
}

TEST_F(ReleaseTest, AProgramThatDoesNotStartInItsPlaceIsTakenBack) {
  publish("9.0.0", "#!/bin/sh\ncase $0 in */prefix/bin/*) exit 1;; esac\n");
  EXPECT_THROW(install_release(fetch_release(list_url(), platform_name(), {}), prefix_, {}), Error);
  EXPECT_EQ(installed(), "#!/bin/sh\necho old\n");
  EXPECT_FALSE(fs::exists(prefix_ / "share/man/man1/tensorfold.1")) << "it was not there before";
}

TEST_F(ReleaseTest, AnUpdateThatIsKilledLeavesTheOldProgramAndCanBeRunAgain) {
  publish("9.0.0", kGood);
  hub_.add_fault({.kind = testing::HubFault::Kind::stall, .path = "package", .bytes = 20});
  const Release release = fetch_release(list_url(), platform_name(), {});
  const pid_t child = ::fork();
  if (child == 0) {
    install_release(release, prefix_, {});
    ::_exit(0);
  }
  const auto staging = [&] {
    for (const auto& entry : fs::directory_iterator(prefix_))
      if (entry.path().filename().string().starts_with(".tensorfold-update-")) return entry.path();
    return fs::path();
  };
  while (staging().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(installed(), "#!/bin/sh\necho old\n");
  fs::last_write_time(staging(), fs::file_time_type::clock::now() - std::chrono::hours(2));
  install_release(release, prefix_, {});
  EXPECT_EQ(installed(), kGood);
  EXPECT_TRUE(staging().empty()) << "what the killed update left is gone";
}

TEST_F(ReleaseTest, OddListsAreRefused) {
  for (const char* text : {"", "[]", "{}", "<html>", R"({"version":"9"})", R"({"version":"9.0.0","packages":[]})",
                           R"({"version":"9.0.0","packages":{}})", R"({"version":"9.0.0","packages":{"p":{}}})",
                           R"({"version":"9.0.0","packages":{"p":{"url":"file:///x","size":1,"sha256":""}}})"})
    EXPECT_THROW(parse_release(text, "p", "http://127.0.0.1/list"), Error) << text;
}

TEST_F(ReleaseTest, ABuildTreeIsNoInstallation) {
  EXPECT_EQ(installed_prefix(prefix_ / "bin/tensorfold"), prefix_);
  EXPECT_THROW(installed_prefix(prefix_ / "tensorfold"), Error);
  write_file(prefix_ / "CMakeCache.txt", "");
  EXPECT_THROW(installed_prefix(prefix_ / "bin/tensorfold"), Error);
}

/// What a check says within a second.
class Told {
 public:
  std::function<void(const std::string&)> listener() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      line_ = line;
      changed_.notify_all();
    };
  }
  std::string wait(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return !line_.empty(); });
    return line_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string line_;
};

TEST_F(ReleaseTest, TheStartUpCheckTellsOnceADayAtMostAsksOnce) {
  publish("9.0.0", kGood);
  const fs::path memory = folder_.path() / "cache/update-check.json";
  for (int start = 0; start < 3; ++start) {
    Told told;
    const ReleaseCheck check({.list_url = list_url(), .version = "0.1.0", .memory = memory}, told.listener());
    EXPECT_NE(told.wait(std::chrono::seconds(5)).find("9.0.0"), std::string::npos);
  }
  EXPECT_EQ(hub_.requests().size(), 1u);
  json known = json::parse(read_file(memory));
  known["checked"] = known["checked"].get<int64_t>() - 25 * 3600;
  write_file(memory, known.dump());
  Told told;
  const ReleaseCheck check({.list_url = list_url(), .version = "0.1.0", .memory = memory}, told.listener());
  told.wait(std::chrono::seconds(5));
  EXPECT_EQ(hub_.requests().size(), 2u);
}

TEST_F(ReleaseTest, TheStartUpCheckIsSilentAboutTheSameVersionAndAboutFailures) {
  publish("9.0.0", kGood);
  for (const std::string& url :
       {list_url(), std::string("http://127.0.0.1:1/list"), std::string("nonsense"), std::string()}) {
    Told told;
    const ReleaseCheck check({.list_url = url, .version = "9.0.0", .memory = folder_.path() / "m.json"},
                             told.listener());
    EXPECT_EQ(told.wait(std::chrono::milliseconds(200)), "");
  }
}

TEST_F(ReleaseTest, AStartNeverWaitsForTheCheck) {
  publish("9.0.0", kGood);
  hub_.add_fault({.kind = testing::HubFault::Kind::stall, .path = "/releases.json"});
  const auto begin = std::chrono::steady_clock::now();
  {
    const ReleaseCheck check({.list_url = list_url(), .version = "0.1.0", .memory = folder_.path() / "m.json"},
                             [](const std::string&) {});
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2'500));
}

}  // namespace
}  // namespace tensorfold::hub
