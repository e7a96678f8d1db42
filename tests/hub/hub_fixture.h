// A temporary cache, a test hub with one model, and a client with short waits.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "hub/pull.h"
#include "hub/test_hub.h"

namespace tensorfold::testing {

/// A folder that is gone when the test is over.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tensorfold-hub-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string random_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

/// Collects what a pull says.
class RecordingProgress : public hub::Progress {
 public:
  void begin(const std::string&, size_t count, uint64_t total, uint64_t present) override {
    const std::lock_guard lock(mutex);
    begun_files = count;
    begun_total = total;
    begun_present = present;
    done = static_cast<int64_t>(present);
  }
  void advance(int64_t bytes) override { done += bytes; }
  void file_done(const std::string& name, uint64_t) override {
    const std::lock_guard lock(mutex);
    files.push_back(name);
  }
  void note(const std::string& line) override {
    const std::lock_guard lock(mutex);
    notes.push_back(line);
  }
  std::mutex mutex;
  size_t begun_files = 0;
  uint64_t begun_total = 0;
  uint64_t begun_present = 0;
  std::atomic<int64_t> done{0};
  std::vector<std::string> files;
  std::vector<std::string> notes;
};

/// `ORG/Model` on a test hub: a config, an index, two shards of a few pieces, a side file, and things we do not read.
class HubTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kPiece = 64u << 10;

  HubTest() {
    HubRepo model;
    model.revisions["main"] = commit_of('a');
    files_["config.json"] = plain_file(R"({"model_type":"qwen3_5"})");
    files_["generation_config.json"] = plain_file(R"({"temperature":0.7})");
    files_["tokenizer.json"] = lfs_file(random_bytes(9'001, 1));
    files_["chat_template.jinja"] = plain_file("{{ messages }}");
    files_["model.safetensors.index.json"] =
        plain_file(R"({"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
    files_["model-00001-of-00002.safetensors"] = lfs_file(random_bytes(5 * kPiece + 77, 2));
    files_["model-00002-of-00002.safetensors"] = lfs_file(random_bytes(3 * kPiece, 3));
    files_["mtp-4bit.safetensors"] = lfs_file(random_bytes(1'234, 4));
    model.commits[commit_of('a')] = files_;
    auto& served = model.commits[commit_of('a')];
    served["README.md"] = plain_file("# a model");
    served["model-Q4.gguf"] = lfs_file(random_bytes(2'000, 5));
    served["original/consolidated.safetensors"] = lfs_file(random_bytes(2'000, 6));
    served["consolidated.safetensors"] = lfs_file(random_bytes(2'000, 7));
    served["images/picture.json"] = plain_file("{}");
    hub_.set_repo("ORG/Model", model);
    settings_.endpoint = hub_.endpoint();
    settings_.cache_root = folder_.path() / "hub";
    retry_.first_delay = std::chrono::milliseconds(2);
    retry_.longest_delay = std::chrono::milliseconds(20);
    http_.stall_timeout = std::chrono::seconds(1);
    options_.piece_bytes = kPiece;
    options_.connections = 4;
  }

  [[nodiscard]] hub::Client client() const { return hub::Client(settings_, retry_, http_); }
  [[nodiscard]] hub::Cache cache() const { return hub::Cache(settings_.cache_root); }
  [[nodiscard]] hub::RepoId repo() const { return {"ORG", "Model", ""}; }

  hub::PullResult pull(const hub::ConfigCheck& check = {}) {
    return hub::pull(client(), cache(), repo(), options_, progress_, check);
  }

  /// Every file we read lies in `snapshot` with its content, and the progress ended at the total.
  void expect_complete(const std::filesystem::path& snapshot) const {
    for (const auto& [name, file] : files_) EXPECT_EQ(read_file(snapshot / name), *file.content) << name;
  }

  /// The Error that `action` throws; fails the test when it throws none.
  template <typename Action>
  static Error error_of(Action action) {
    try {
      action();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "no error was thrown";
    return Error(ErrorKind::internal, "none");
  }

  [[nodiscard]] size_t count_requests(const std::string& part) const {
    size_t count = 0;
    for (const HubRequest& request : hub_.requests())
      if (request.path.find(part) != std::string::npos) ++count;
    return count;
  }

  TemporaryFolder folder_;
  TestHub hub_;
  std::map<std::string, HubFile> files_;  ///< those of ORG/Model that a pull fetches
  hub::Settings settings_;
  hub::RetryPolicy retry_;
  hub::HttpOptions http_;
  hub::PullOptions options_;
  RecordingProgress progress_;
};

}  // namespace tensorfold::testing
