// Reading files by position: many threads may read one File at once, and nothing is mapped, so that a file which
// shrinks while it is read is an error and never a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace tensorfold {

/// A regular file opened for reading. Moves, does not copy.
class File {
 public:
  /// Throws Error(not_found) where there is no such regular file, Error(io) where it cannot be opened.
  explicit File(const std::filesystem::path& path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Bytes it had when it was opened.
  [[nodiscard]] uint64_t size() const { return size_; }

  /// Fills `out` from byte `offset` on. Thread-safe. Throws Error(io), or Error(corrupt_file) where the file ends
  /// first.
  void read(uint64_t offset, std::span<std::byte> out) const;
  /// Says that bytes [offset, offset + length) will be read soon: the disk may begin.
  void expect(uint64_t offset, uint64_t length) const noexcept;
  /// Says that bytes [offset, offset + length) will not be read again: whole pages leave the page cache.
  void drop(uint64_t offset, uint64_t length) const noexcept;

 private:
  std::filesystem::path path_;
  uint64_t size_ = 0;
  int descriptor_ = -1;
};

/// The whole of a text file of at most `most_bytes`. Throws as File does, and Error(corrupt_file) where it is larger.
std::string read_text_file(const std::filesystem::path& path, uint64_t most_bytes);

}  // namespace tensorfold
