#include "server/response_store.h"

#include <utility>

namespace tensorfold::server {
namespace {

constexpr size_t most_entries = 1024;
constexpr size_t most_bytes = size_t{256} << 20;

}  // namespace

void ResponseStore::put(const std::string& id, StoredResponse stored) {
  const size_t bytes = dump(stored.response).size() + dump(stored.items).size();
  const std::lock_guard lock(mutex_);
  entries_.push_front({id, std::move(stored), bytes});
  by_id_[id] = entries_.begin();
  bytes_ += bytes;
  while (entries_.size() > most_entries || (bytes_ > most_bytes && entries_.size() > 1))
    drop(std::prev(entries_.end()));
}

std::optional<StoredResponse> ResponseStore::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  return found->second->stored;
}

bool ResponseStore::erase(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  drop(found->second);
  return true;
}

void ResponseStore::drop(std::list<Entry>::iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

}  // namespace tensorfold::server
