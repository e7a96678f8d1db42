// A checkpoint that is headers alone: names, types and shapes of files too big to have here.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "format/tensor_store.h"

namespace tensorfold::testing {

class HeaderStore : public format::TensorStore {
 public:
  void add(const std::string& name, format::DataType type, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    const auto bytes = static_cast<uint64_t>(count * format::size_of(type));
    tensors_[name] = {name, type, std::move(shape), bytes, -1, 0};
  }
  void bf16(const std::string& name, std::vector<int64_t> shape) {
    add(name, format::DataType::bf16, std::move(shape));
  }
  void f32(const std::string& name, std::vector<int64_t> shape) { add(name, format::DataType::f32, std::move(shape)); }
  /// The packed triple of a module of logical `shape`.
  void packed(const std::string& module, std::vector<int64_t> shape, int64_t bits = 4, int64_t group = 64) {
    const int64_t inputs = shape.back();
    shape.back() = inputs * bits / 32;
    add(module + ".weight", format::DataType::u32, shape);
    shape.back() = inputs / group;
    bf16(module + ".scales", shape);
    bf16(module + ".biases", shape);
  }
  void remove(const std::string& name) { tensors_.erase(name); }

  [[nodiscard]] uint64_t bytes() const {
    uint64_t total = 0;
    for (const auto& [name, tensor] : tensors_) total += tensor.bytes;
    return total;
  }
  [[nodiscard]] const format::TensorInfo* find(std::string_view name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  void read(const format::TensorInfo& tensor, uint64_t, std::span<std::byte>) const override {
    fail(ErrorKind::io, "{} has no bytes", tensor.name);
  }

 private:
  std::map<std::string, format::TensorInfo, std::less<>> tensors_;
};

}  // namespace tensorfold::testing
