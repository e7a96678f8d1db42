// Kept prefixes: what earlier prompts and replies left in the caches, found again by their tokens.
//
// Because bits depend on the prefix alone, a page is named by its tokens and those before it, and a prompt may go on
// from any kept state whose tokens begin it. A snapshot is a recurrent state with the pages behind it; pages are shared
// by reference between snapshots and running sequences. Tiers: the device (pages and slots of the pool), host memory
// (bytes), disk (snapshot_files.h). Used by the engine's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/cache_pool.h"
#include "engine/prefix_names.h"
#include "engine/snapshot_files.h"

namespace tensorfold::engine {

struct PrefixStoreOptions {
  int32_t device_slots = 8;  ///< state slots of the pool that kept states may take
  uint64_t host_bytes = 0;   ///< budget of the host tier
  int32_t pinned = 3;        ///< system blocks that others cannot push out
};

/// Why a prefix is kept.
enum class KeepReason { system_block, prompt_point, reply_end, gave_up };

/// Counters, for tests and health.
struct PrefixStoreTotals {
  uint64_t kept = 0;
  uint64_t resumed = 0;
  uint64_t from_host = 0;
  uint64_t from_disk = 0;
  uint64_t demoted = 0;
  uint64_t dropped = 0;
};

class PrefixStore {
 public:
  /// `files`: the disk tier, or null. Both outlive the store.
  PrefixStore(CachePool& pool, const PrefixStoreOptions& options, SnapshotFiles* files);
  ~PrefixStore();
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  /// Whether a longer kept prefix of `tokens` than those in memory is on its way from disk: the first call starts the
  /// reading, in the background; when it has ended, resume() finds it.
  bool awaits_disk(std::span<const int32_t> tokens);
  /// Puts `lane` (open and empty) behind the longest kept prefix of `tokens` that leaves at least one token to feed;
  /// returns its length, 0 when there is none.
  int32_t resume(std::span<const int32_t> tokens, CacheLane& lane);
  /// Keeps the first lane.committed of `tokens`. Does nothing when there is no room that it may take.
  void keep(std::span<const int32_t> tokens, const CacheLane& lane, KeepReason reason);
  /// Gives up kept prefixes, least recently used first, until `pages` pages are free; false when that cannot be.
  bool make_room(int32_t pages);
  /// Forgets everything in memory.
  void clear();

  [[nodiscard]] const PrefixStoreTotals& totals() const { return totals_; }
  [[nodiscard]] size_t snapshots() const { return snapshots_.size(); }
  [[nodiscard]] uint64_t host_bytes() const { return host_bytes_; }

 private:
  using Bytes = std::vector<std::byte>;

  /// A page of some prefix, on the device, in host memory, or both.
  struct Page {
    Page() = default;
    ~Page();
    Page(const Page&) = delete;
    Page& operator=(const Page&) = delete;
    std::shared_ptr<Page> before;
    PrefixName name = 0;  ///< of all tokens up to the page's end
    std::vector<int32_t> tokens;
    int32_t device_page = -1;  ///< holds one reference of the pool
    std::shared_ptr<const Bytes> bytes;
    int32_t device_users = 0;  ///< snapshots of the device tier whose prefix runs through here
    int32_t host_users = 0;    ///< and of the host tier
  };
  struct Snapshot {
    PrefixName name = 0;
    int32_t length = 0;
    std::shared_ptr<Page> last;
    int32_t state_slot = -1;  ///< device tier
    std::shared_ptr<const Bytes> state;
    bool on_device = false;
    bool pinned = false;
    uint64_t used = 0;
  };

  [[nodiscard]] Snapshot* find(PrefixName name);
  [[nodiscard]] static std::vector<Page*> chain_of(const std::shared_ptr<Page>& last);
  [[nodiscard]] static bool begins(const Snapshot& snapshot, std::span<const int32_t> tokens);
  Snapshot* longest_in_memory(std::span<const int32_t> tokens, std::span<const PrefixName> names);
  Snapshot* load_longer(std::span<const int32_t> tokens, std::span<const PrefixName> names, int32_t than);
  int32_t resume_pages(std::span<const int32_t> tokens, std::span<const PrefixName> names, int32_t than,
                       CacheLane& lane);
  std::shared_ptr<Page> pages_for_lane(std::span<const int32_t> tokens, std::span<const PrefixName> names,
                                       const CacheLane& lane);
  bool promote(Snapshot& snapshot);
  void demote(Snapshot& snapshot);
  void leave_device(Snapshot& snapshot);
  void leave_host(Snapshot& snapshot);
  void drop(Snapshot& snapshot);
  /// Moves the least recently used snapshot off the device, or out; false when none may go.
  bool yield_one(const Snapshot* except);
  /// Drops the least recently used of the host tier until it fits its budget.
  void fit_host(const Snapshot* except);
  void thin(std::span<const PrefixName> names, int32_t length);
  void limit_pins();
  void write(const Snapshot& snapshot, std::span<const PrefixName> names);
  [[nodiscard]] Bytes read_page(const Page& page);

  CachePool& pool_;
  PrefixStoreOptions options_;
  SnapshotFiles* files_;
  std::unordered_map<PrefixName, std::unique_ptr<Snapshot>> snapshots_;
  std::map<int32_t, int32_t> lengths_;                         ///< length -> snapshots of that length
  std::unordered_map<PrefixName, std::weak_ptr<Page>> pages_;  ///< full pages
  int32_t device_states_ = 0;
  uint64_t host_bytes_ = 0;
  uint64_t clock_ = 0;
  PrefixStoreTotals totals_;
};

}  // namespace tensorfold::engine
