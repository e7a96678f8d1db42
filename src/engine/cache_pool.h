// The memory of all sequences: the target's cache, the drafters' caches that run parallel to its pages, and who holds
// which page and state slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/reference_pool.h"

namespace tensorfold::engine {

/// A sequence's place in the caches. Positions 0..committed-1 are absorbed; page j holds positions
/// [j * page_tokens, (j + 1) * page_tokens) and may be shared with others.
struct CacheLane {
  std::vector<int32_t> pages;
  int32_t state_slot = -1;
  int32_t committed = 0;
};

/// Owns the caches. Every page id is one page in each of them; state slots exist in the target's alone.
class CachePool {
 public:
  /// `parallel_layouts`: the drafters' caches, in order. Throws Error(capacity) when memory ends.
  CachePool(backend::Backend& backend, const backend::CacheLayout& target,
            std::span<const backend::CacheLayout> parallel_layouts, const backend::CacheSize& size);

  [[nodiscard]] backend::Cache& target() { return *caches_.front(); }
  /// Cache of drafter layout i; null where that layout is empty.
  [[nodiscard]] backend::Cache* parallel(size_t i) { return parallel_[i]; }
  [[nodiscard]] const backend::CacheSize& size() const { return size_; }
  [[nodiscard]] int32_t page_tokens() const { return size_.page_tokens; }
  [[nodiscard]] int32_t pages_for(int32_t tokens) const { return (tokens + page_tokens() - 1) / page_tokens(); }
  [[nodiscard]] int32_t free_pages() const { return pages_.free(); }
  [[nodiscard]] int32_t free_slots() const { return slots_.free(); }
  [[nodiscard]] bool has_state() const { return state_bytes_ > 0; }
  /// Bytes of a page over all caches and of a state slot.
  [[nodiscard]] int64_t page_bytes() const { return page_bytes_; }
  [[nodiscard]] int64_t state_bytes() const { return state_bytes_; }

  /// An empty lane with a cleared state slot; false when no slot is free.
  bool open(CacheLane& lane);
  /// Gives everything back.
  void close(CacheLane& lane);
  /// Makes positions committed..tokens-1 writable: pages that reach `tokens`, and a page of the lane's own where the
  /// next position lies in a shared one (copied). False when pages end; the lane then keeps what it got.
  bool reserve(CacheLane& lane, int32_t tokens);
  /// Drops pages behind the last committed position.
  void trim(CacheLane& lane);
  /// How many free pages reserve(lane, tokens) would take.
  [[nodiscard]] int32_t pages_needed(const CacheLane& lane, int32_t tokens) const;

  /// References of pages and slots, for the prefix store.
  ReferencePool& pages() { return pages_; }
  ReferencePool& slots() { return slots_; }
  [[nodiscard]] const ReferencePool& pages() const { return pages_; }

  /// page_bytes() bytes of every cache, in order.
  void read_page(int32_t page, std::span<std::byte> out);
  void write_page(int32_t page, std::span<const std::byte> in);
  void read_state(int32_t slot, std::span<std::byte> out);
  void write_state(int32_t slot, std::span<const std::byte> in);
  void copy_state(int32_t from, int32_t to);

  /// How often a page was copied because it was shared.
  [[nodiscard]] uint64_t pages_copied() const { return pages_copied_; }

 private:
  backend::Backend& backend_;
  backend::CacheSize size_;
  std::vector<std::unique_ptr<backend::Cache>> caches_;
  std::vector<backend::Cache*> parallel_;
  int64_t page_bytes_ = 0;
  int64_t state_bytes_ = 0;
  ReferencePool pages_;
  ReferencePool slots_;
  uint64_t pages_copied_ = 0;
};

/// Bytes of a page over all layouts and of a state slot, without allocating more than one of each.
struct CacheCosts {
  int64_t page_bytes = 0;
  int64_t state_bytes = 0;
};
CacheCosts measure_cache(backend::Backend& backend, const backend::CacheLayout& target,
                         std::span<const backend::CacheLayout> parallel_layouts, int32_t page_tokens);

}  // namespace tensorfold::engine
