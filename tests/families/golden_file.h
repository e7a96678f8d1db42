// Reads tensors of a golden file whole.
#pragma once

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "families/sequence_runner.h"
#include "format/safetensors_store.h"

namespace tensorfold::testing {

class GoldenFile {
 public:
  explicit GoldenFile(const std::filesystem::path& path) : store_(format::SafetensorsStore::open_file(path)) {}

  [[nodiscard]] bool has(const std::string& name) const { return store_->find(name) != nullptr; }
  [[nodiscard]] std::vector<int32_t> ids(const std::string& name) const { return read<int32_t>(name); }
  [[nodiscard]] Rows rows(const std::string& name) const {
    return {store_->find(name)->shape.back(), read<float>(name)};
  }

 private:
  template <typename Value>
  [[nodiscard]] std::vector<Value> read(const std::string& name) const {
    const format::TensorInfo* tensor = store_->find(name);
    if (tensor == nullptr) throw std::runtime_error("no golden tensor " + name);
    std::vector<Value> values(tensor->bytes / sizeof(Value));
    store_->read(*tensor, 0, std::as_writable_bytes(std::span(values)));
    return values;
  }

  std::unique_ptr<format::SafetensorsStore> store_;
};

}  // namespace tensorfold::testing
