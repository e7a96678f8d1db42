// One blob on its way from the hub into the cache: its lock, its pieces, its checksum.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "hub/client.h"
#include "hub/file_lock.h"
#include "hub/partial_file.h"
#include "hub/progress.h"

namespace tensorfold::hub {

/// What every blob of one pull shares.
struct DownloadContext {
  const Client& client;
  const Cache& cache;
  const RepoId& repo;
  const std::string& commit;
  Progress& progress;
  uint64_t piece_bytes;
};

/// Fetches the content of one etag. open(), take_piece() and finish() are called under the scheduler's care;
/// fetch_piece() runs on several threads, for different pieces.
class BlobDownload {
 public:
  enum class Opened {
    busy,     ///< another process holds the lock: ask again later
    present,  ///< the blob is in the cache
    ready,    ///< pieces may be taken
  };

  BlobDownload(const DownloadContext& context, const RemoteFile& file) : context_(context), file_(file) {}

  [[nodiscard]] const RemoteFile& file() const { return file_; }

  Opened open();

  /// Bytes of it on disk, once opened.
  [[nodiscard]] uint64_t received() const { return part_ ? part_->received() : file_.size; }

  /// A piece nobody fetches yet. While it is unknown whether the server answers ranges, one at a time.
  std::optional<size_t> take_piece();

  /// Fetches a taken piece to its end, trying again as the client's policy says. `on_ranges` is called once the server
  /// has shown that it answers ranges. Throws Error when it is no use.
  void fetch_piece(HttpSession& session, size_t piece, const std::function<void()>& on_ranges);

  /// Every piece is filled and none is being fetched.
  [[nodiscard]] bool is_received();

  /// Checks the content and puts it in place. False: the checksum differed, everything is fetched once more. Throws
  /// corrupt_file when it differs again.
  bool finish();

 private:
  /// What one try of a piece came to.
  struct Try {
    HttpResult result;
    bool ranges_ignored = false;  ///< 200 or 416 to a range that has to be one
    bool odd_answer = false;      ///< a body that is not what was asked for: worth another try
    bool from_hub = true;         ///< the endpoint itself answered
  };

  Try try_piece(HttpSession& session, size_t& piece, const std::function<void()>& on_ranges);
  [[nodiscard]] bool is_hub(const std::string& url) const;
  void remember_address(const HttpHead& head, const std::string& url);
  bool accept_head(const HttpHead& head, const HttpHead& hub_head, bool ranged, size_t& piece, Try& attempt,
                   const std::function<void()>& on_ranges);
  bool accept_whole_body(const HttpHead& head, bool ranged, size_t& piece, Try& attempt);
  void check_announced(const HttpHead& hub_head) const;
  void settle_failed_try(const Try& attempt, int& failures, bool progressed);
  void start_over(uint64_t piece_bytes);
  void hash_if_next(uint64_t position, std::span<const std::byte> bytes);
  void hash_forward();
  void hash_to_the_end();
  [[noreturn]] void fail_size(const std::string& size) const;

  DownloadContext context_;
  RemoteFile file_;
  std::optional<FileLock> lock_;
  std::unique_ptr<PartialFile> part_;

  std::mutex mutex_;  // the members below
  std::vector<bool> taken_;
  size_t in_flight_ = 0;
  bool ranges_known_ = false;
  std::string direct_url_;  // where the hub last redirected to: later pieces go there without asking it again
  int checksum_failures_ = 0;

  std::mutex hash_mutex_;  // the members below
  std::unique_ptr<Digest> digest_;
  uint64_t hashed_ = 0;
};

}  // namespace tensorfold::hub
