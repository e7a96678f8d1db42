#include "base/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/presence.h"

namespace tensorfold {
namespace {

constexpr size_t kLargestRead = size_t{1} << 30;  // Linux caps one read below 2 GiB

[[noreturn]] void fail_open(const std::filesystem::path& path, int code) {
  if (code == ENOENT) has_file(path);  // a link that leads nowhere has words of its own
  if (code == ENXIO) fail(ErrorKind::not_found, "{} is not a regular file", path.string());  // a socket
  const bool absent = code == ENOENT || code == ENOTDIR;
  fail(absent ? ErrorKind::not_found : ErrorKind::io, "cannot open {}: {}", path.string(), std::strerror(code));
}

}  // namespace

File::File(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK, opening a pipe waits for a writer. Reads of regular files do not heed it.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor_ < 0) fail_open(path, errno);
  struct stat status{};
  const bool known = ::fstat(descriptor_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(std::exchange(descriptor_, -1));
    fail(ErrorKind::not_found, "{} is {}not a regular file", path.string(),
         known && S_ISDIR(status.st_mode) ? "a folder, " : "");
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), size_(other.size_), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void File::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count =
        ::pread(descriptor_, out.data(), std::min(out.size(), kLargestRead), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(ErrorKind::io, "cannot read {}: {}", path_.string(), std::strerror(errno));
    if (count == 0) {
      fail(ErrorKind::corrupt_file, "{} ends at byte {}, {} more were expected", path_.string(), offset, out.size());
    }
    out = out.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

void File::expect(uint64_t offset, uint64_t length) const noexcept {
  ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(length), POSIX_FADV_WILLNEED);
}

void File::drop(uint64_t offset, uint64_t length) const noexcept {
  ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(length), POSIX_FADV_DONTNEED);
}

std::string read_text_file(const std::filesystem::path& path, uint64_t most_bytes) {
  const File file(path);
  if (file.size() > most_bytes) {
    fail(ErrorKind::corrupt_file, "{} has {} bytes; at most {} make sense for such a file", path.string(), file.size(),
         most_bytes);
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span<char>(text.data(), text.size())));
  return text;
}

}  // namespace tensorfold
