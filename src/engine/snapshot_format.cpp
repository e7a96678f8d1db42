#include "engine/snapshot_format.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/digest.h"
#include "base/error.h"

namespace tensorfold::engine {
namespace {

using nlohmann::json;

constexpr char magic[] = "TFPREFX1";
constexpr uint64_t fixed_bytes = 24;  // magic, header size, header digest
constexpr uint64_t most_header_bytes = 64ULL << 20;

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }
uint64_t from_hex(const json& value) { return std::stoull(value.get<std::string>(), nullptr, 16); }

/// A file descriptor that is closed, and a partial file that is removed unless it was renamed.
class PartialFile {
 public:
  explicit PartialFile(std::filesystem::path path) : path_(std::move(path)) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor_ < 0) fail_with("create");
  }
  ~PartialFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!renamed_) ::unlink(path_.c_str());
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  void write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail_with("write");
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }
  void rename_to(const std::filesystem::path& final_path) {
    if (::fsync(descriptor_) != 0) fail_with("sync");
    if (::rename(path_.c_str(), final_path.c_str()) != 0) fail_with("rename");
    renamed_ = true;
    const int folder = ::open(final_path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    ::fsync(folder);
    ::close(folder);
  }

 private:
  [[noreturn]] void fail_with(const char* what) const {
    fail(ErrorKind::io, "cannot {} {}: {}", what, path_.string(), std::generic_category().message(errno));
  }
  std::filesystem::path path_;
  int descriptor_ = -1;
  bool renamed_ = false;
};

SnapshotHeader parse_header(const std::string& text) {
  const json fields = json::parse(text);
  SnapshotHeader header;
  header.identity = fields.at("identity").get<std::string>();
  header.name = from_hex(fields.at("name"));
  header.parent = from_hex(fields.at("parent"));
  header.length = fields.at("length").get<int32_t>();
  header.first_page = fields.at("first_page").get<int32_t>();
  header.page_tokens = fields.at("page_tokens").get<int32_t>();
  header.page_bytes = fields.at("page_bytes").get<uint64_t>();
  header.state_bytes = fields.at("state_bytes").get<uint64_t>();
  header.pinned = fields.at("pinned").get<bool>();
  header.tokens = fields.at("tokens").get<std::vector<int32_t>>();
  for (const json& digest : fields.at("digests")) header.digests.push_back(from_hex(digest));
  return header;
}

/// Whether the numbers of a header agree with each other.
bool consistent(const SnapshotHeader& header) {
  if (header.page_tokens < 1 || header.length < 1 || header.first_page < 0 || header.digests.empty()) return false;
  const int64_t first = int64_t{header.first_page} * header.page_tokens;
  const int64_t pages = (header.length + header.page_tokens - 1) / header.page_tokens - header.first_page;
  return first <= header.length && static_cast<int64_t>(header.tokens.size()) == header.length - first &&
         static_cast<int64_t>(header.pages()) == pages && header.page_bytes < (1ULL << 40) &&
         header.state_bytes < (1ULL << 40);
}

}  // namespace

std::string encode_header(const SnapshotHeader& header) {
  json digests = json::array();
  for (const uint64_t digest : header.digests) digests.push_back(hex(digest));
  const std::string text =
      json{{"identity", header.identity},     {"name", hex(header.name)},          {"parent", hex(header.parent)},
           {"length", header.length},         {"first_page", header.first_page},   {"page_tokens", header.page_tokens},
           {"page_bytes", header.page_bytes}, {"state_bytes", header.state_bytes}, {"pinned", header.pinned},
           {"tokens", header.tokens},         {"digests", std::move(digests)}}
          .dump();
  std::string bytes(fixed_bytes, '\0');
  const uint64_t size = text.size();
  const uint64_t digest = digest_of(text);
  std::memcpy(bytes.data(), magic, 8);
  std::memcpy(bytes.data() + 8, &size, 8);
  std::memcpy(bytes.data() + 16, &digest, 8);
  return bytes + text;
}

SnapshotHeader read_header(const File& file) {
  const auto damaged = [&](const char* what) {
    fail(ErrorKind::corrupt_file, "kept prefix {} has {}", file.path().string(), what);
  };
  std::string fixed(fixed_bytes, '\0');
  if (file.size() < fixed_bytes) damaged("no header");
  file.read(0, std::as_writable_bytes(std::span(fixed)));
  if (std::memcmp(fixed.data(), magic, 8) != 0) damaged("another format");
  uint64_t size = 0;
  uint64_t digest = 0;
  std::memcpy(&size, fixed.data() + 8, 8);
  std::memcpy(&digest, fixed.data() + 16, 8);
  if (size > most_header_bytes || size > file.size() - fixed_bytes) damaged("a header that is cut off");
  std::string text(size, '\0');
  file.read(fixed_bytes, std::as_writable_bytes(std::span(text)));
  if (digest_of(text) != digest) damaged("a damaged header");
  SnapshotHeader header;
  try {
    header = parse_header(text);
  } catch (const std::exception&) {
    damaged("a header that cannot be read");
  }
  if (!consistent(header)) damaged("a header that contradicts itself");
  header.data_offset = fixed_bytes + size;
  if (file.size() != header.data_offset + header.state_bytes + header.pages() * header.page_bytes) {
    damaged("another size than its header says");
  }
  return header;
}

void write_atomically(const std::filesystem::path& path, const std::vector<std::span<const std::byte>>& parts) {
  PartialFile file(path.string() + ".partial");
  for (const std::span<const std::byte> part : parts) file.write(part);
  file.rename_to(path);
}

}  // namespace tensorfold::engine
