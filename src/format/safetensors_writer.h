// Writing safetensors: the header first, from names, types and shapes alone, then every tensor's bytes at its place, in
// any order and in pieces. A file appears under its name when it is whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "format/tensor_store.h"

namespace tensorfold::format {

class SafetensorsWriter {
 public:
  /// Opens "<path>.partial" for the tensors (name, type and shape count) in this order. Throws Error(io).
  SafetensorsWriter(std::filesystem::path path, std::span<const TensorInfo> tensors);
  /// Removes what was not finished.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Bytes of one tensor from `offset` on. Throws Error(io).
  void write(const std::string& name, uint64_t offset, std::span<const std::byte> bytes);
  /// Flushes to the disk and gives the file its name. Throws Error(io).
  void finish();
  /// Bytes of the tensors.
  [[nodiscard]] uint64_t data_bytes() const { return data_bytes_; }

 private:
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  std::filesystem::path path_;
  std::filesystem::path partial_;
  int descriptor_ = -1;
  uint64_t data_bytes_ = 0;
  std::map<std::string, Place> places_;
};

}  // namespace tensorfold::format
