#include "hub/blob_download.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/error.h"

namespace tensorfold::hub {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kHashStep = 8u << 20;       // the checksum and the disk follow the bytes at this distance
constexpr uint64_t kRealProgress = 64u << 10;  // a try that brought this much does not count as failed

struct ContentRange {
  uint64_t begin = 0;
  std::optional<uint64_t> total;
};

/// Reads `bytes 5-9/10` or `bytes 5-9/*`.
std::optional<ContentRange> parse_content_range(const std::string& text) {
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return std::nullopt;
  ContentRange range;
  const char* end = text.data() + text.size();
  const auto begin = std::from_chars(text.data() + kUnit.size(), end, range.begin);
  const size_t slash = text.find('/');
  if (begin.ec != std::errc() || slash == std::string::npos) return std::nullopt;
  if (text.substr(slash + 1) == "*") return range;
  uint64_t total = 0;
  const auto last = std::from_chars(text.data() + slash + 1, end, total);
  if (last.ec != std::errc() || last.ptr != end) return std::nullopt;
  range.total = total;
  return range;
}

}  // namespace

BlobDownload::Opened BlobDownload::open() {
  const fs::path blob = context_.cache.blob_path(context_.repo, file_.etag);
  if (!lock_) lock_ = FileLock::try_acquire(context_.cache.lock_path(context_.repo, file_.etag));
  if (!lock_) return Opened::busy;
  std::error_code error;
  if (fs::is_regular_file(blob, error) && fs::file_size(blob, error) == file_.size) {
    lock_.reset();
    return Opened::present;
  }
  // A dangling link or a file of another size is no blob of this name.
  fs::remove(blob, error);
  part_ = std::make_unique<PartialFile>(blob, file_.size, context_.piece_bytes);
  taken_.assign(part_->piece_count(), false);
  return Opened::ready;
}

std::optional<size_t> BlobDownload::take_piece() {
  const std::lock_guard lock(mutex_);
  if (!ranges_known_ && in_flight_ > 0) return std::nullopt;
  for (size_t piece = 0; piece < taken_.size(); ++piece) {
    if (taken_[piece] || part_->is_filled(piece)) continue;
    taken_[piece] = true;
    ++in_flight_;
    return piece;
  }
  return std::nullopt;
}

bool BlobDownload::is_received() {
  const std::lock_guard lock(mutex_);
  return in_flight_ == 0 && part_->filled_prefix() == file_.size;
}

void BlobDownload::fetch_piece(HttpSession& session, size_t piece, const std::function<void()>& on_ranges) {
  int failures = 0;
  while (!part_->is_filled(piece)) {
    const uint64_t before = part_->position(piece);
    const Try attempt = try_piece(session, piece, on_ranges);
    context_.client.throw_if_cancelled();
    if (attempt.ranges_ignored) {
      const std::lock_guard lock(mutex_);
      if (in_flight_ == 1) {
        // Nothing of this file can be had in parts: it is fetched whole, from its start.
        start_over(file_.size);
        piece = 0;
        if (++failures >= context_.client.retry().attempts)
          fail(ErrorKind::network, "the server neither sends {} whole nor in parts", file_.name);
        continue;
      }
    }
    const uint64_t now = part_->position(piece);
    if (!part_->is_filled(piece)) settle_failed_try(attempt, failures, now >= before + kRealProgress);
  }
  part_->flush_in_background(part_->piece_begin(piece), part_->piece_end(piece));
  hash_forward();
  const std::lock_guard lock(mutex_);
  --in_flight_;
}

BlobDownload::Try BlobDownload::try_piece(HttpSession& session, size_t& piece, const std::function<void()>& on_ranges) {
  HttpRequest request;
  {
    const std::lock_guard lock(mutex_);
    request.url = direct_url_;
  }
  const bool direct = !request.url.empty();
  if (!direct) request.url = context_.client.file_url(context_.repo, context_.commit, file_.name);
  const uint64_t begin = part_->position(piece);
  const bool ranged = begin > 0 || part_->piece_end(piece) < file_.size;
  if (ranged) {
    request.range_begin = begin;
    request.range_end = part_->piece_end(piece);
  }
  Try attempt;
  uint64_t following = 0;  // written, and neither checked nor on their way to the disk
  const Client::Reply reply = context_.client.send(
      session, request,
      [&](const HttpHead& head, const Client::Reply& so_far) {
        remember_address(head, so_far.url);
        return accept_head(head, so_far.hub_head, ranged, piece, attempt, on_ranges);
      },
      [&](std::span<const std::byte> bytes) {
        const uint64_t position = part_->position(piece);
        if (bytes.size() > part_->piece_end(piece) - position) {
          attempt.odd_answer = true;
          return false;
        }
        // Small writes, as libcurl gives the bytes, while they are in the processor's cache: gathering them first was
        // measured slower, and large writes to one file make its other writers spin.
        part_->write(piece, bytes);
        context_.progress.advance(static_cast<int64_t>(bytes.size()));
        hash_if_next(position, bytes);
        if ((following += bytes.size()) >= kHashStep) {
          part_->flush_in_background(position + bytes.size() - following, position + bytes.size());
          following = 0;
          hash_forward();
        }
        return true;
      });
  attempt.result = reply.result;
  attempt.from_hub = is_hub(reply.url);
  if (reply.result.end == HttpResult::End::failed) remember_address(HttpHead{}, "");
  return attempt;
}

bool BlobDownload::is_hub(const std::string& url) const {
  return origin_of(url) == origin_of(context_.client.settings().endpoint);
}

/// Later pieces go straight to where one was answered; a signed address that has run out is forgotten.
void BlobDownload::remember_address(const HttpHead& head, const std::string& url) {
  const bool good = (head.status == 200 || head.status == 206) && !is_hub(url);
  const std::lock_guard lock(mutex_);
  direct_url_ = good ? url : "";
}

bool BlobDownload::accept_head(const HttpHead& head, const HttpHead& hub_head, bool ranged, size_t& piece, Try& attempt,
                               const std::function<void()>& on_ranges) {
  if (head.status == 416) attempt.ranges_ignored = true;
  if (head.status != 200 && head.status != 206) return false;
  check_announced(hub_head);
  if (head.status == 200) return accept_whole_body(head, ranged, piece, attempt);
  const auto range = parse_content_range(head.header("content-range").value_or(""));
  if (!ranged || !range || range->begin != part_->position(piece)) {
    attempt.odd_answer = true;
    return false;
  }
  if (range->total && *range->total != file_.size) fail_size(std::to_string(*range->total));
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ranges_known_, true)) return true;
  }
  on_ranges();
  return true;
}

bool BlobDownload::accept_whole_body(const HttpHead& head, bool ranged, size_t& piece, Try& attempt) {
  const auto length = head.header("content-length");
  if (length && *length != std::to_string(file_.size)) fail_size(*length);
  if (!ranged) return true;
  // The server does not know ranges. A body from the file's start is as good, if no other piece is on its way.
  const std::lock_guard lock(mutex_);
  if (part_->position(piece) == 0 && in_flight_ == 1 && !ranges_known_) {
    start_over(file_.size);
    piece = 0;
    return true;
  }
  attempt.ranges_ignored = true;
  return false;
}

void BlobDownload::check_announced(const HttpHead& hub_head) const {
  const auto commit = hub_head.header("x-repo-commit");
  if (commit && *commit != context_.commit)
    fail(ErrorKind::network, "the hub serves {} of commit {}, not of {}", file_.name, printable(*commit),
         context_.commit);
  const auto linked = hub_head.header("x-linked-etag");
  if (linked && file_.digest == DigestKind::sha256 && plain_etag(*linked) != file_.etag)
    fail(ErrorKind::corrupt_file, "the hub lists {} with SHA-256 {} and serves {}", file_.name, file_.etag,
         printable(plain_etag(*linked)));
}

void BlobDownload::settle_failed_try(const Try& attempt, int& failures, bool progressed) {
  const HttpHead& head = attempt.result.head;
  const bool answered = head.status != 0 && head.status != 200 && head.status != 206;
  failures = progressed ? 1 : failures + 1;
  const bool last = failures >= context_.client.retry().attempts;
  if (answered && head.status != 416) {
    // The hub's own refusal is final. Another host's may be an address that ran out.
    const bool transient = Client::is_transient(head.status) || !attempt.from_hub;
    if (!transient || (last && attempt.from_hub)) context_.client.refuse(head, context_.repo, file_.name);
    if (last) fail(ErrorKind::network, "the download host answers {} for {}", head.status, file_.name);
  } else if (last || (attempt.result.end == HttpResult::End::failed && !attempt.result.may_retry)) {
    fail(ErrorKind::network, "{} could not be fetched: {} (run again to go on from here)", file_.name,
         attempt.result.failure.empty() ? "the server sends other bytes than asked for" : attempt.result.failure);
  }
  context_.client.wait_before_retry(failures, head);
}

/// Forgets what was received. The caller holds mutex_ and is the only one fetching.
void BlobDownload::start_over(uint64_t piece_bytes) {
  const std::lock_guard lock(hash_mutex_);
  context_.progress.advance(-static_cast<int64_t>(part_->received()));
  part_->restart(piece_bytes);
  taken_.assign(part_->piece_count(), in_flight_ > 0);
  digest_.reset();
  hashed_ = 0;
}

/// Lets the checksum catch up with the bytes that have no gap before them, unless another thread is at it.
void BlobDownload::hash_forward() {
  const std::unique_lock lock(hash_mutex_, std::try_to_lock);
  if (lock.owns_lock()) hash_to_the_end();
}

/// Adds bytes at `position` to the checksum while they are in memory, if it has come just so far and nobody is at it.
void BlobDownload::hash_if_next(uint64_t position, std::span<const std::byte> bytes) {
  const std::unique_lock lock(hash_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || hashed_ != position) return;
  if (!digest_) digest_ = std::make_unique<Digest>(file_.digest, file_.size);
  digest_->update(bytes);
  hashed_ += bytes.size();
}

void BlobDownload::hash_to_the_end() {
  if (!digest_) digest_ = std::make_unique<Digest>(file_.digest, file_.size);
  thread_local std::vector<std::byte> buffer(1u << 20);
  for (uint64_t filled = part_->filled_prefix(); hashed_ < filled;) {
    const size_t want = static_cast<size_t>(std::min<uint64_t>(buffer.size(), filled - hashed_));
    const size_t got = part_->read(hashed_, std::span(buffer).first(want));
    digest_->update(std::span<const std::byte>(buffer).first(got));
    hashed_ += got;
  }
}

bool BlobDownload::finish() {
  std::string digest;
  {
    const std::lock_guard lock(hash_mutex_);
    hash_to_the_end();
    digest = digest_->finish();
  }
  if (file_.digest == DigestKind::none || digest == file_.etag) {
    part_->publish();
    part_.reset();
    lock_.reset();
    return true;
  }
  const std::lock_guard lock(mutex_);
  // Nothing can arrive of an empty file: no second try would bring other bytes, and no piece would end in another
  // check.
  if (++checksum_failures_ >= 2 || file_.size == 0) {
    part_->discard();
    fail(ErrorKind::corrupt_file, "{} arrived twice with a wrong checksum: {} instead of {}", file_.name, digest,
         file_.etag);
  }
  context_.progress.note(file_.name + " arrived damaged: fetching it again");
  ranges_known_ = false;
  direct_url_.clear();
  start_over(context_.piece_bytes);
  return false;
}

void BlobDownload::fail_size(const std::string& size) const {
  fail(ErrorKind::corrupt_file, "{} has {} bytes on the server, and the hub lists it with {}", file_.name,
       printable(size, 40), file_.size);
}

}  // namespace tensorfold::hub
