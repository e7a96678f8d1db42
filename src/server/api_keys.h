// Who may use the server. Keys are kept as digests; a label stands for each in logs and metrics.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace tensorfold::server {

class ApiKeys {
 public:
  /// `keys`: from the command line; `environment`: comma-separated; `file`: a key a line ("label: key", "#" comments),
  /// mode 0600 or stricter. Throws Error(invalid_request or io) that names what is wrong, never a key.
  ApiKeys(const std::vector<std::string>& keys, std::string_view environment, std::string file);

  /// True when a key is asked for at all.
  [[nodiscard]] bool required() const;
  /// The label of the key, or nothing when it is not one of ours. Compares with every digest, each in constant time.
  std::optional<std::string> label_of(std::string_view key);
  /// Reads the file again. A file that has become unreadable, malformed or empty closes the server until it is right;
  /// one that has become open to others is not read, and its keys of before stay.
  void reload();

 private:
  struct Entry {
    Sha256Digest digest;
    std::string label;
  };
  /// What changes when a file does, whatever its time of change is made to say.
  struct FileMark {
    uint64_t inode = 0;
    int64_t size = -1;
    std::timespec content{};
    std::timespec status{};
    bool operator==(const FileMark& other) const;
  };
  void reload_if_changed();
  [[nodiscard]] FileMark mark() const;
  /// Nothing: the file is open to others. Throws Error for one that is of no use.
  [[nodiscard]] std::optional<std::vector<Entry>> read_file() const;
  [[nodiscard]] std::vector<Entry> entries_of(std::string_view content) const;

  mutable std::mutex mutex_;
  std::vector<Entry> fixed_;
  std::vector<Entry> from_file_;
  std::string file_;
  FileMark seen_;
  std::chrono::steady_clock::time_point looked_{};
};

/// The key a request presents: Authorization: Bearer KEY, or x-api-key: KEY.
std::string_view presented_key(std::optional<std::string_view> authorization,
                               std::optional<std::string_view> x_api_key);

}  // namespace tensorfold::server
