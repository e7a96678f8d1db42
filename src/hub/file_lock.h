// A lock file that keeps two processes (ours, or the Python hub client) from writing the same blob.
#pragma once

#include <filesystem>
#include <optional>

namespace tensorfold::hub {

/// An flock held on a file for as long as this object lives; the kernel drops it when the process dies.
class FileLock {
 public:
  /// Takes the lock if it is free; nothing when another holder has it. A file system without locks gives an empty lock.
  /// Throws Error(io) when the lock file cannot be made.
  static std::optional<FileLock> try_acquire(const std::filesystem::path& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

}  // namespace tensorfold::hub
