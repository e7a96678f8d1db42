#include "hub/partial_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "hub/cache.h"

namespace tensorfold::hub {
namespace {

namespace fs = std::filesystem;

// The journal: three 64-bit words (magic, file size, piece size), then one word a piece, in this machine's byte order.
constexpr uint64_t kMagic = 0x31535452'41504654;  // "TFPARTS1"
constexpr size_t kHeaderWords = 3;

struct Journal {
  uint64_t piece_bytes = 0;
  std::vector<uint64_t> progress;
};

size_t pieces_of(uint64_t size, uint64_t piece_bytes) {
  return static_cast<size_t>((size + piece_bytes - 1) / piece_bytes);
}

int open_file(const fs::path& path, int flags) { return ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0644); }

/// The journal's words if they are whole and fit a file of `size` bytes whose part is there in full length.
std::optional<Journal> read_journal(const fs::path& journal, const fs::path& part, uint64_t size) {
  struct stat status{};
  if (::lstat(part.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || static_cast<uint64_t>(status.st_size) != size)
    return std::nullopt;
  if (::lstat(journal.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  const size_t words = static_cast<size_t>(status.st_size) / 8;
  if (words < kHeaderWords || words > (1u << 24) || status.st_size % 8 != 0) return std::nullopt;
  std::vector<uint64_t> content(words);
  const int descriptor = open_file(journal, O_RDONLY);
  if (descriptor < 0) return std::nullopt;
  const ssize_t got = ::pread(descriptor, content.data(), words * 8, 0);
  ::close(descriptor);
  if (got != static_cast<ssize_t>(words * 8) || content[0] != kMagic || content[1] != size || content[2] == 0)
    return std::nullopt;
  Journal result{content[2], {content.begin() + kHeaderWords, content.end()}};
  if (result.progress.size() != pieces_of(size, result.piece_bytes)) return std::nullopt;
  for (size_t piece = 0; piece < result.progress.size(); ++piece)
    if (result.progress[piece] > std::min(result.piece_bytes, size - piece * result.piece_bytes)) return std::nullopt;
  return result;
}

fs::path with_suffix(const fs::path& blob, const char* suffix) { return blob.string() + suffix; }

std::optional<uint64_t> foreign_partial_size(const fs::path& blob, uint64_t size) {
  struct stat status{};
  if (::lstat(with_suffix(blob, ".incomplete").c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  if (static_cast<uint64_t>(status.st_size) > size) return std::nullopt;
  return static_cast<uint64_t>(status.st_size);
}

void write_fully(int descriptor, std::span<const std::byte> bytes, uint64_t position, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(position));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == ENOSPC || errno == EDQUOT))
      fail(ErrorKind::capacity,
           "no space left on the disk of {}: free some and run again, the download goes on from here",
           path.parent_path().string());
    if (written < 0) fail(ErrorKind::io, "cannot write {}: {}", path.string(), std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(written));
    position += static_cast<uint64_t>(written);
  }
}

}  // namespace

PartialFile::PartialFile(fs::path blob, uint64_t size, uint64_t piece_bytes)
    : blob_(std::move(blob)),
      part_(with_suffix(blob_, kPartialSuffix)),
      journal_(with_suffix(blob_, kJournalSuffix)),
      size_(size),
      piece_bytes_(piece_bytes) {
  check(piece_bytes > 0, "pieces have bytes");
  std::error_code error;
  make_directories(blob_.parent_path());
  const bool resumed = load_journal();
  const auto foreign = resumed ? std::nullopt : foreign_partial_size(blob_, size_);
  if (!resumed) fs::remove(part_, error);
  if (foreign) fs::rename(with_suffix(blob_, ".incomplete"), part_, error);
  part_descriptor_ = open_file(part_, O_RDWR | O_CREAT);
  journal_descriptor_ = open_file(journal_, O_RDWR | O_CREAT);
  if (part_descriptor_ < 0 || journal_descriptor_ < 0)
    fail(ErrorKind::io, "cannot write {}: {}", part_.string(), std::strerror(errno));
  if (resumed) return;
  restart(piece_bytes);
  if (foreign && !error) {
    uint64_t left = *foreign;
    for (size_t piece = 0; piece < piece_count(); ++piece) {
      const uint64_t filled = std::min(left, piece_end(piece) - piece_begin(piece));
      progress_[piece] = filled;
      left -= filled;
    }
    write_journal();
  }
}

PartialFile::~PartialFile() {
  if (part_descriptor_ >= 0) ::close(part_descriptor_);
  if (journal_descriptor_ >= 0) ::close(journal_descriptor_);
}

uint64_t PartialFile::piece_end(size_t piece) const { return std::min(size_, (piece + 1) * piece_bytes_); }

uint64_t PartialFile::received() const {
  uint64_t sum = 0;
  for (const auto& progress : progress_) sum += progress.load();
  return sum;
}

uint64_t PartialFile::filled_prefix() const {
  for (size_t piece = 0; piece < piece_count(); ++piece)
    if (!is_filled(piece)) return position(piece);
  return size_;
}

bool PartialFile::load_journal() {
  const auto journal = read_journal(journal_, part_, size_);
  if (!journal) return false;
  piece_bytes_ = journal->piece_bytes;
  progress_ = std::vector<std::atomic<uint64_t>>(journal->progress.size());
  for (size_t piece = 0; piece < progress_.size(); ++piece) progress_[piece] = journal->progress[piece];
  return true;
}

void PartialFile::write_journal() {
  std::vector<uint64_t> words = {kMagic, size_, piece_bytes_};
  for (const auto& progress : progress_) words.push_back(progress.load());
  write_fully(journal_descriptor_, std::as_bytes(std::span(words)), 0, journal_);
}

void PartialFile::restart(uint64_t piece_bytes) {
  // The journal goes first: between the two steps nothing promises bytes that are no longer meant.
  if (::ftruncate(journal_descriptor_, 0) != 0 || ::ftruncate(part_descriptor_, static_cast<off_t>(size_)) != 0)
    fail(ErrorKind::io, "cannot write {}: {}", part_.string(), std::strerror(errno));
  piece_bytes_ = std::max<uint64_t>(1, piece_bytes);
  progress_ = std::vector<std::atomic<uint64_t>>(pieces_of(size_, piece_bytes_));
  write_journal();
}

void PartialFile::write(size_t piece, std::span<const std::byte> bytes) {
  check(position(piece) + bytes.size() <= piece_end(piece), "a piece keeps to its place");
  write_fully(part_descriptor_, bytes, position(piece), part_);
  const uint64_t progress = progress_[piece] += bytes.size();
  write_fully(journal_descriptor_, std::as_bytes(std::span(&progress, 1)), (kHeaderWords + piece) * 8, journal_);
}

size_t PartialFile::read(uint64_t position, std::span<std::byte> into) const {
  while (true) {
    const ssize_t got = ::pread(part_descriptor_, into.data(), into.size(), static_cast<off_t>(position));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      fail(ErrorKind::io, "cannot read {}: {}", part_.string(), got == 0 ? "it is too short" : std::strerror(errno));
    return static_cast<size_t>(got);
  }
}

void PartialFile::flush_in_background([[maybe_unused]] uint64_t begin, [[maybe_unused]] uint64_t end) const {
#ifdef SYNC_FILE_RANGE_WRITE
  ::sync_file_range(part_descriptor_, static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                    SYNC_FILE_RANGE_WRITE);
#endif
}

void PartialFile::publish() {
  check(filled_prefix() == size_, "only a whole file is published");
  if (::fdatasync(part_descriptor_) != 0)
    fail(ErrorKind::io, "cannot write {}: {}", part_.string(), std::strerror(errno));
  std::error_code error;
  fs::rename(part_, blob_, error);
  if (error) fail(ErrorKind::io, "cannot write {}: {}", blob_.string(), error.message());
  fs::remove(journal_, error);
}

void PartialFile::discard() {
  std::error_code error;
  fs::remove(journal_, error);
  fs::remove(part_, error);
}

uint64_t PartialFile::received_on_disk(const fs::path& blob, uint64_t size) {
  if (const auto journal = read_journal(with_suffix(blob, kJournalSuffix), with_suffix(blob, kPartialSuffix), size)) {
    uint64_t sum = 0;
    for (const uint64_t progress : journal->progress) sum += progress;
    return sum;
  }
  return foreign_partial_size(blob, size).value_or(0);
}

}  // namespace tensorfold::hub
