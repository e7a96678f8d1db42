// Who may use the server. Keys are kept as digests; a label stands for each in logs and metrics.
#pragma once

#include <chrono>
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
  /// Reads the file again. A file that has become unreadable, too open or empty closes the server until it is right.
  void reload();

 private:
  struct Entry {
    Sha256Digest digest;
    std::string label;
  };
  void reload_if_changed();
  void read_file(std::vector<Entry>& entries) const;

  mutable std::mutex mutex_;
  std::vector<Entry> fixed_;
  std::vector<Entry> from_file_;
  std::string file_;
  std::timespec file_time_{};
  std::chrono::steady_clock::time_point looked_{};
};

/// The key a request presents: Authorization: Bearer KEY, or x-api-key: KEY.
std::string_view presented_key(std::optional<std::string_view> authorization,
                               std::optional<std::string_view> x_api_key);

}  // namespace tensorfold::server
