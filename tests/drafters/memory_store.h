// A tensor store in memory, for tests.
#pragma once

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "format/floats.h"
#include "format/tensor_store.h"

namespace tensorfold::testing {

class MemoryStore : public format::TensorStore {
 public:
  /// Adds a bf16 tensor; `values` are rounded to bf16.
  void add(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
    Entry entry;
    entry.info = {name, format::DataType::bf16, shape, values.size() * 2};
    for (const float value : values) entry.bits.push_back(format::float_to_bf16(value));
    entries_[name] = std::move(entry);
  }
  [[nodiscard]] const format::TensorInfo* find(std::string_view name) const override {
    const auto found = entries_.find(std::string(name));
    return found == entries_.end() ? nullptr : &found->second.info;
  }
  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, entry] : entries_) all.push_back(name);
    return all;
  }
  void read(const format::TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const override {
    const Entry& entry = entries_.at(tensor.name);
    std::memcpy(out.data(), reinterpret_cast<const std::byte*>(entry.bits.data()) + offset, out.size());
  }

 private:
  struct Entry {
    format::TensorInfo info;
    std::vector<uint16_t> bits;
  };
  std::map<std::string, Entry> entries_;
};

inline std::vector<float> random_values(std::mt19937& random, size_t count, float deviation = 1.0F) {
  std::normal_distribution<float> value(0.0F, deviation);
  std::vector<float> values(count);
  // As a bf16 tensor holds them, so that references see what the store delivers.
  for (float& v : values) v = format::bf16_to_float(format::float_to_bf16(value(random)));
  return values;
}

}  // namespace tensorfold::testing
