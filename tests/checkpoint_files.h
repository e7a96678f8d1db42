// Writes safetensors files for tests, well formed or not: the header is plain text of the test's choice.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

namespace tensorfold::testing {

/// A directory of its own that vanishes with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() / fmt::format("tensorfold_test_{}_{}", ::getpid(), counter++);
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The bytes of a file with this header text and data; `length` other than the text's own where the test lies.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>((header.size() >> (8 * i)) & 0xFF);
  return bytes + header + data;
}

/// One tensor to write.
struct WrittenTensor {
  std::string type;
  std::vector<int64_t> shape;
  std::string data;
};

inline std::string header_entry(const std::string& name, const WrittenTensor& tensor, size_t offset) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name, tensor.type,
                     fmt::join(tensor.shape, ","), offset, offset + tensor.data.size());
}

/// A well-formed file, `padding` spaces behind the header.
inline std::string safetensors_bytes(const std::map<std::string, WrittenTensor>& tensors, size_t padding = 0,
                                     const std::string& metadata = "") {
  std::string header = "{";
  std::string data;
  if (!metadata.empty()) header += "\"__metadata__\":" + metadata;
  for (const auto& [name, tensor] : tensors) {
    if (header.size() > 1) header += ",";
    header += header_entry(name, tensor, data.size());
    data += tensor.data;
  }
  return safetensors_bytes(header + "}" + std::string(padding, ' '), data);
}

}  // namespace tensorfold::testing
