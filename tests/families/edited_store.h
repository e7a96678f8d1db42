// A checkpoint in memory whose tensors a test renames, joins and replaces.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "format/tensor_store.h"

namespace tensorfold::testing {

class EditedStore : public format::TensorStore {
 public:
  struct Tensor {
    format::TensorInfo info;
    std::vector<std::byte> bytes;
  };

  EditedStore() = default;
  /// A copy of every tensor of `other`.
  explicit EditedStore(const format::TensorStore& other) {
    for (const std::string& name : other.names()) {
      const format::TensorInfo& info = *other.find(name);
      Tensor tensor{info, std::vector<std::byte>(info.bytes)};
      other.read(info, 0, tensor.bytes);
      tensors_[name] = std::move(tensor);
    }
  }
  void put(const std::string& name, format::DataType type, std::vector<int64_t> shape, std::vector<std::byte> bytes) {
    tensors_[name] = {{name, type, std::move(shape), bytes.size(), -1, 0}, std::move(bytes)};
  }
  void put_floats(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    put(name, format::DataType::f32, std::move(shape), std::move(bytes));
  }
  Tensor take(const std::string& name) {
    const auto found = tensors_.find(name);
    check(found != tensors_.end(), "a tensor that is there");
    Tensor tensor = std::move(found->second);
    tensors_.erase(found);
    return tensor;
  }
  [[nodiscard]] bool has(const std::string& name) const { return tensors_.contains(name); }
  void rename(const std::function<std::string(const std::string&)>& renamed) {
    std::map<std::string, Tensor, std::less<>> old;
    old.swap(tensors_);
    for (auto& [name, tensor] : old) {
      const std::string to = renamed(name);
      tensor.info.name = to;
      tensors_[to] = std::move(tensor);
    }
  }

  [[nodiscard]] const format::TensorInfo* find(std::string_view name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second.info;
  }
  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  void read(const format::TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const override {
    const std::vector<std::byte>& bytes = tensors_.find(tensor.name)->second.bytes;
    check(offset + out.size() <= bytes.size(), "a read past the end of a tensor");
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  }

 private:
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace tensorfold::testing
