#include "base/physical_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

namespace tensorfold {
namespace {

/// The least limit in `file` of a control group and of the groups above it, up to `root`; UINT64_MAX without one. In a
/// container the path may be the host's: what does not exist here has no limit.
uint64_t least_limit(const std::filesystem::path& root, const std::string& group, const char* file) {
  uint64_t limit = UINT64_MAX;
  for (std::filesystem::path path = group;; path = path.parent_path()) {
    uint64_t bytes = 0;  // the file says "max" where version 2 has no limit
    if (std::ifstream(root / path.relative_path() / file) >> bytes) limit = std::min(limit, bytes);
    if (!path.has_relative_path()) return limit;
  }
}

uint64_t control_group_limit() {
  const std::filesystem::path root = "/sys/fs/cgroup";
  uint64_t limit = UINT64_MAX;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) limit = std::min(limit, least_limit(root, group, "memory.max"));
    if (controllers == "memory") limit = std::min(limit, least_limit(root / "memory", group, "memory.limit_in_bytes"));
  }
  return limit;
}

}  // namespace

uint64_t physical_memory() {
  const auto machine =
      static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return std::min(machine, control_group_limit());
}

}  // namespace tensorfold
