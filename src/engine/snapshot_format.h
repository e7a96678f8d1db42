// The bytes of a snapshot file: a magic word, a JSON header with its digest, then the state and the pages, each with a
// digest in the header. Little-endian.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "engine/prefix_names.h"

namespace tensorfold::engine {

/// What a file says about itself.
struct SnapshotHeader {
  std::string identity;
  PrefixName name = 0;
  PrefixName parent = 0;
  int32_t length = 0;
  int32_t first_page = 0;
  int32_t page_tokens = 0;
  uint64_t page_bytes = 0;
  uint64_t state_bytes = 0;
  bool pinned = false;
  std::vector<int32_t> tokens;    ///< from first_page * page_tokens to length
  std::vector<uint64_t> digests;  ///< of the state, then of each page
  uint64_t data_offset = 0;       ///< where the state begins
  [[nodiscard]] size_t pages() const { return digests.size() - 1; }
};

/// Magic, sizes, digest and JSON; the data follows directly.
std::string encode_header(const SnapshotHeader& header);
/// Reads and checks a file's header and the file's size. Throws Error(corrupt_file).
SnapshotHeader read_header(const File& file);

/// Writes `parts` one after the other to a file beside `path`, syncs it and renames it to `path`. Throws Error(io) and
/// leaves nothing behind.
void write_atomically(const std::filesystem::path& path, const std::vector<std::span<const std::byte>>& parts);

}  // namespace tensorfold::engine
