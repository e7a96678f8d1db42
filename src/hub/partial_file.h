// A blob that is being downloaded: pieces that fill in any order, and a journal of how far each has come. Both survive
// a kill: data is written before the journal says so, and the checksum at the end judges the whole.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace tensorfold::hub {

/// `<blob>.tensorfold-part` and `<blob>.tensorfold-journal`. Pieces are cut every `piece_bytes`; each grows from its
/// begin. write() may run on several threads for different pieces. Throws Error(io), or Error(capacity) on a full disk.
class PartialFile {
 public:
  /// Opens what an earlier run left (with its own piece size) or starts anew; an `<blob>.incomplete` of the Python
  /// client is taken over as a filled beginning.
  PartialFile(std::filesystem::path blob, uint64_t size, uint64_t piece_bytes);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  [[nodiscard]] size_t piece_count() const { return progress_.size(); }
  [[nodiscard]] uint64_t piece_begin(size_t piece) const { return piece * piece_bytes_; }
  [[nodiscard]] uint64_t piece_end(size_t piece) const;
  /// Where the next byte of `piece` goes.
  [[nodiscard]] uint64_t position(size_t piece) const { return piece_begin(piece) + progress_[piece].load(); }
  [[nodiscard]] bool is_filled(size_t piece) const { return position(piece) == piece_end(piece); }
  /// Bytes received over all pieces.
  [[nodiscard]] uint64_t received() const;
  /// Bytes received without a gap from the file's start.
  [[nodiscard]] uint64_t filled_prefix() const;

  void write(size_t piece, std::span<const std::byte> bytes);
  /// Reads received bytes back; returns how many.
  size_t read(uint64_t position, std::span<std::byte> into) const;

  /// Forgets everything received and cuts pieces anew.
  void restart(uint64_t piece_bytes);
  /// Starts writing these bytes of the file to disk, so that publish() waits less.
  void flush_in_background(uint64_t begin, uint64_t end) const;
  /// Makes the content durable under the blob's name. Every piece is filled.
  void publish();
  /// Removes both files.
  void discard();

  /// What an earlier run left of `blob`, in bytes, without opening it for writing.
  static uint64_t received_on_disk(const std::filesystem::path& blob, uint64_t size);

 private:
  bool load_journal();
  void write_journal();

  std::filesystem::path blob_;
  std::filesystem::path part_;
  std::filesystem::path journal_;
  uint64_t size_;
  uint64_t piece_bytes_;
  std::vector<std::atomic<uint64_t>> progress_;
  int part_descriptor_ = -1;
  int journal_descriptor_ = -1;
};

}  // namespace tensorfold::hub
