#include "base/presence.h"

#include <cerrno>
#include <cstring>

#include <sys/stat.h>

#include "base/error.h"

namespace tensorfold {

bool has_file(const std::filesystem::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0) return true;
  const int code = errno;
  if (code != ENOENT && code != ENOTDIR)
    fail(ErrorKind::io, "cannot look at {}: {}", path.string(), std::strerror(code));
  if (::lstat(path.c_str(), &status) != 0) return false;
  fail(ErrorKind::not_found, "{} points to a missing file: fetch it again with `tensorfold pull`", path.string());
}

}  // namespace tensorfold
