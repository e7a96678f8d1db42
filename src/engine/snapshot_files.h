// The disk tier of kept prefixes: one file a snapshot, holding its recurrent state and those pages that the file it
// builds on does not hold. Files appear whole or not at all (written beside, synced, renamed), every part has a digest,
// and a file that is damaged, half written, or of other weights, arithmetic or layout is skipped with one line.
//
// A thread of its own scans the folder at start, writes, and deletes the least recently used above the budget; another
// reads what was asked for with fetch(). Any thread may call.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/prefix_names.h"

namespace tensorfold::engine {

struct SnapshotFilesOptions {
  std::filesystem::path directory;  ///< made when missing
  uint64_t most_bytes = 0;
  /// Names weights, arithmetic, cache layout and type: files of another identity are left alone until they are the
  /// oldest above the budget.
  std::string identity;
  int32_t page_tokens = 0;
  uint64_t page_bytes = 0;
  uint64_t state_bytes = 0;
  std::function<void(const std::string&)> log;  ///< one line each; may be null
  std::function<void()> on_fetched = nullptr;   ///< after each fetch that ended, on the reading thread; may be null
};

/// A snapshot as it goes to disk. Pages first_page .. cover tokens up to `length`.
struct SnapshotImage {
  PrefixName name = 0;
  int32_t length = 0;
  PrefixName parent = 0;  ///< the file that holds the pages below first_page; none where first_page is 0
  int32_t first_page = 0;
  bool pinned = false;
  std::vector<int32_t> tokens;  ///< from first_page * page_tokens to length
  std::shared_ptr<const std::vector<std::byte>> state;
  std::vector<std::shared_ptr<const std::vector<std::byte>>> pages;
};

class SnapshotFiles {
 public:
  /// Starts the thread; the folder is read in the background. Throws Error(io) when the folder cannot be made.
  explicit SnapshotFiles(SnapshotFilesOptions options);
  /// Writes what is queued, then ends.
  ~SnapshotFiles();
  SnapshotFiles(const SnapshotFiles&) = delete;
  SnapshotFiles& operator=(const SnapshotFiles&) = delete;

  /// Queues a snapshot for writing. It counts as held at once. Dropped with a line when too much is queued.
  void write(SnapshotImage image);
  [[nodiscard]] bool holds(PrefixName name) const;
  /// Lengths of the snapshots on disk that are longer than `than`, longest first.
  [[nodiscard]] std::vector<int32_t> lengths_above(int32_t than) const;
  /// Reads a snapshot with all its pages (first_page 0), or nothing: it is not there, or a part of it is damaged, and
  /// then it is forgotten with a line.
  std::optional<SnapshotImage> read(PrefixName name);
  enum class Fetch { none, reading, ready };
  /// Starts reading a snapshot in the background, if that was not done before; none: it is not there, or not whole.
  Fetch fetch(PrefixName name);
  /// What a fetch brought, once.
  std::optional<SnapshotImage> take(PrefixName name);
  /// No fetch ends after this returns.
  void stop_fetching();
  /// A newer snapshot takes this one's place: its file goes after the next write, unless others build on it.
  void supersede(PrefixName name);
  /// Whether the snapshot is held; takes supersede() back.
  bool reclaim(PrefixName name);
  /// Waits until the folder is read and everything queued is written.
  void flush();

 private:
  struct Entry {
    std::filesystem::path path;
    int32_t length = 0;
    PrefixName parent = 0;
    int32_t first_page = 0;
    uint64_t bytes = 0;
    uint64_t used = 0;
    int32_t children = 0;
    bool written = false;
    bool pinned = false;
    bool superseded = false;  ///< to be deleted when nothing builds on it any more
  };

  void run();
  void read_fetches();
  void scan();
  void write_file(const SnapshotImage& image);
  /// One file: its state if wanted, and its pages below `pages_end` (-1: all). Throws Error when anything is wrong.
  [[nodiscard]] SnapshotImage read_file(const std::filesystem::path& path, int32_t pages_end, bool with_state) const;
  /// The entry that the file at `path` describes. Throws Error(corrupt_file).
  [[nodiscard]] std::pair<PrefixName, Entry> read_entry(const std::filesystem::path& path) const;
  void add(PrefixName name, Entry entry);
  void forget(PrefixName name, bool delete_file);
  void sweep_superseded();
  void prune();
  void prune_foreign();
  void warm() const;
  [[nodiscard]] std::filesystem::path path_of(PrefixName name, int32_t length) const;
  void say(const std::string& line) const;

  SnapshotFilesOptions options_;
  std::filesystem::path folder_;  ///< of this identity
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::unordered_map<PrefixName, Entry> entries_;
  std::multiset<int32_t> lengths_;
  std::deque<SnapshotImage> queue_;
  uint64_t queued_bytes_ = 0;
  uint64_t total_bytes_ = 0;
  uint64_t clock_ = 0;
  bool busy_ = true;
  bool stopping_ = false;
  std::deque<PrefixName> fetches_;  ///< asked for; the first is being read while reading_
  std::deque<SnapshotImage> fetched_;
  bool reading_stopped_ = false;
  std::condition_variable fetch_wake_;
  std::thread thread_;
  std::thread reader_;
};

}  // namespace tensorfold::engine
