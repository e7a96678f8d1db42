// Finished responses kept for retrieval and as the history of later ones; in memory only.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/json_body.h"

namespace tensorfold::server {

struct StoredResponse {
  Json response;
  Json items;         ///< the conversation up to and including the reply, as input items
  size_t inputs = 0;  ///< so many of them stood before the reply
};

/// The newest responses up to a count and a size. Thread-safe.
class ResponseStore {
 public:
  void put(const std::string& id, StoredResponse stored);
  [[nodiscard]] std::optional<StoredResponse> find(const std::string& id) const;
  /// False when there is none of this id.
  bool erase(const std::string& id);

 private:
  struct Entry {
    std::string id;
    StoredResponse stored;
    size_t bytes;
  };
  void drop(std::list<Entry>::iterator entry);

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // newest first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_id_;
  size_t bytes_ = 0;
};

}  // namespace tensorfold::server
