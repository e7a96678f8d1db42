#include "format/safetensors_writer.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/error.h"

namespace tensorfold::format {
namespace {

uint64_t bytes_of(const TensorInfo& tensor) {
  auto bytes = static_cast<uint64_t>(size_of(tensor.type));
  for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

/// One header entry; big headers are made of these, not of one tree of JSON values.
std::string entry_of(const TensorInfo& tensor, uint64_t begin, uint64_t end) {
  return fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", nlohmann::json(tensor.name).dump(),
                     to_string(tensor.type), fmt::join(tensor.shape, ","), begin, end);
}

[[noreturn]] void fail_io(const std::filesystem::path& path, const char* what) {
  fail(ErrorKind::io, "{}: {}: {}", path.string(), what, std::strerror(errno));
}

void write_all(int descriptor, const std::filesystem::path& path, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail_io(path, "cannot write");
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::span<const TensorInfo> tensors)
    : path_(std::move(path)), partial_(path_.string() + ".partial") {
  std::string header = R"({"__metadata__":{"format":"mlx"})";
  uint64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    const uint64_t bytes = bytes_of(tensor);
    header += "," + entry_of(tensor, offset, offset + bytes);
    check(places_.emplace(tensor.name, Place{offset, bytes}).second, "a tensor written twice");
    offset += bytes;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  data_bytes_ = offset;
  std::string start(8, '\0');
  for (size_t i = 0; i < 8; ++i) start[i] = static_cast<char>((header.size() >> (8 * i)) & 0xFFU);
  start += header;
  for (auto& [name, place] : places_) place.offset += start.size();
  descriptor_ = ::open(partial_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_io(partial_, "cannot be created");
  write_all(descriptor_, partial_, 0, std::as_bytes(std::span(start)));
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(partial_.c_str());
}

void SafetensorsWriter::write(const std::string& name, uint64_t offset, std::span<const std::byte> bytes) {
  const auto place = places_.find(name);
  check(place != places_.end() && offset + bytes.size() <= place->second.bytes, "bytes outside a tensor");
  write_all(descriptor_, partial_, place->second.offset + offset, bytes);
}

void SafetensorsWriter::finish() {
  if (::fsync(descriptor_) != 0) fail_io(partial_, "cannot be flushed");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_io(partial_, "cannot be closed");
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail_io(path_, "cannot be renamed");
}

}  // namespace tensorfold::format
