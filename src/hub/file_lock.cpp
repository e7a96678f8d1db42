#include "hub/file_lock.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "hub/cache.h"

namespace tensorfold::hub {

std::optional<FileLock> FileLock::try_acquire(const std::filesystem::path& path) {
  make_directories(path.parent_path());
  while (true) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (descriptor < 0) fail(ErrorKind::io, "cannot open the lock {}: {}", path.string(), std::strerror(errno));
    FileLock lock(descriptor);
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::nullopt;
      if (errno == EINTR) continue;
      return lock;  // no locks on this file system: go on without
    }
    // Another holder may have unlinked the file between our open and our lock: such a lock protects nothing.
    struct stat ours{};
    struct stat named{};
    if (::fstat(descriptor, &ours) == 0 && ::stat(path.c_str(), &named) == 0 && ours.st_ino == named.st_ino)
      return lock;
  }
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace tensorfold::hub
