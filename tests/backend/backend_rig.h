// What the backend tests share: random values, weights in memory, and the worlds (SIMD level, threads, page size) in
// which the same bits must come out.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/backend.h"
#include "base/error.h"
#include "format/floats.h"

namespace tensorfold::testing {

using Random = std::mt19937_64;

inline std::vector<float> random_floats(Random& random, int64_t count, float spread = 1.0F) {
  std::normal_distribution<float> distribution(0.0F, spread);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = distribution(random);
  return values;
}

inline int64_t random_integer(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

/// Tensors in memory.
class MemoryStore : public format::TensorStore {
 public:
  const format::TensorInfo* add(const std::string& name, format::DataType type, std::vector<int64_t> shape,
                                std::vector<std::byte> bytes) {
    Tensor& tensor = tensors_[name];
    tensor.info = {name, type, std::move(shape), bytes.size(), -1, 0};
    tensor.bytes = std::move(bytes);
    return &tensor.info;
  }
  [[nodiscard]] const format::TensorInfo* find(std::string_view name) const override {
    const auto found = tensors_.find(std::string(name));
    return found == tensors_.end() ? nullptr : &found->second.info;
  }
  [[nodiscard]] std::vector<std::string> names() const override { return {}; }
  void read(const format::TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const override {
    const Tensor& found = tensors_.at(tensor.name);
    check(offset + out.size() <= found.bytes.size(), "a read past the end of a tensor");
    std::memcpy(out.data(), found.bytes.data() + offset, out.size());
  }

 private:
  struct Tensor {
    format::TensorInfo info;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor> tensors_;
};

/// A matrix for a backend and what its weights are, in double precision.
struct TestMatrix {
  std::unique_ptr<MemoryStore> store = std::make_unique<MemoryStore>();
  format::Linear linear;
  std::vector<double> weights;  ///< [stack * outputs][inputs]
};

inline std::vector<std::byte> encode_floats(std::vector<float>& values, format::DataType type) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(format::size_of(type)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == format::DataType::f32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      continue;
    }
    const uint16_t half =
        type == format::DataType::bf16 ? format::float_to_bf16(values[i]) : format::float_to_f16(values[i]);
    values[i] = type == format::DataType::bf16 ? format::bf16_to_float(half) : format::f16_to_float(half);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

/// Random weights: bits 0 stores elements of `type`, else affine codes with pairs of `type`.
inline TestMatrix make_matrix(Random& random, int64_t outputs, int64_t inputs, int32_t bits, int32_t group,
                              format::DataType type) {
  TestMatrix matrix;
  matrix.linear.store = matrix.store.get();
  matrix.linear.outputs = outputs;
  matrix.linear.inputs = inputs;
  if (bits == 0) {
    std::vector<float> values = random_floats(random, outputs * inputs);
    auto bytes = encode_floats(values, type);
    matrix.linear.weight = matrix.store->add("w.weight", type, {outputs, inputs}, std::move(bytes));
    matrix.weights.assign(values.begin(), values.end());
    return matrix;
  }
  const int64_t groups = inputs / group;
  std::vector<float> scales = random_floats(random, outputs * groups, 0.2F);
  std::vector<float> biases = random_floats(random, outputs * groups, 1.0F);
  auto scale_bytes = encode_floats(scales, type);
  auto bias_bytes = encode_floats(biases, type);
  const auto row_bytes = static_cast<size_t>(inputs * bits / 8);
  std::vector<std::byte> words(static_cast<size_t>(outputs) * row_bytes);
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t k = 0; k < inputs; ++k) {
      const auto code = static_cast<uint64_t>(random_integer(random, 0, (1 << bits) - 1));
      for (int64_t bit = 0; bit < bits; ++bit) {
        const auto place = static_cast<size_t>(k * bits + bit);
        if ((code >> bit & 1U) != 0)
          words[static_cast<size_t>(o) * row_bytes + place / 8] |= static_cast<std::byte>(1U << place % 8);
      }
      const auto pair = static_cast<size_t>(o * groups + k / group);
      matrix.weights.push_back(static_cast<double>(code) * static_cast<double>(scales[pair]) +
                               static_cast<double>(biases[pair]));
    }
  }
  matrix.linear.affine = format::AffineFormat{bits, group};
  matrix.linear.weight =
      matrix.store->add("w.weight", format::DataType::u32, {outputs, inputs * bits / 32}, std::move(words));
  matrix.linear.scales = matrix.store->add("w.scales", type, {outputs, groups}, std::move(scale_bytes));
  matrix.linear.biases = matrix.store->add("w.biases", type, {outputs, groups}, std::move(bias_bytes));
  return matrix;
}

/// A tensor filled with `values`, or with NaN so that what is not written shows.
inline backend::OwnedTensor make_tensor(backend::Backend& backend, int64_t rows, int64_t width,
                                        const std::vector<float>& values = {}) {
  backend::OwnedTensor tensor = backend.allocate(rows, width);
  const std::vector<float> poison(static_cast<size_t>(rows * width), std::numeric_limits<float>::quiet_NaN());
  backend.write_rows(tensor, 0, rows, values.empty() ? poison : values);
  return tensor;
}

inline std::vector<float> read_tensor(backend::Backend& backend, backend::Tensor tensor, int64_t rows) {
  std::vector<float> values(static_cast<size_t>(rows * tensor.width));
  backend.read_rows(tensor, 0, rows, values);
  return values;
}

/// Equal bit for bit, and no NaN.
inline ::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " against " << b.size() << " values";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i])) return ::testing::AssertionFailure() << "NaN at " << i;
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]))
      return ::testing::AssertionFailure() << "first difference at " << i << ": " << a[i] << " against " << b[i];
  }
  return ::testing::AssertionSuccess();
}

/// |a - b| <= bound + relative * |b| elementwise.
inline ::testing::AssertionResult close_to(const std::vector<float>& a, const std::vector<double>& b, double bound,
                                           double relative = 0.0) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " against " << b.size() << " values";
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(static_cast<double>(a[i]) - b[i]) <= bound + relative * std::abs(b[i])))
      return ::testing::AssertionFailure()
             << "at " << i << ": " << a[i] << ", reference " << b[i] << ", bound " << bound;
  }
  return ::testing::AssertionSuccess();
}

/// A backend setting under which the bits must not change. Level "cuda" is the CUDA backend, which has its own bits.
struct World {
  std::string level;
  int threads = 1;
};

inline std::unique_ptr<backend::Backend> make_backend(const World& world) {
  if (world.level == "cuda") return backend::make_cuda_backend(0);
  return backend::make_cpu_backend(world.threads, world.level);
}

inline std::vector<std::string> available_levels() {
  std::vector<std::string> levels;
  for (const char* level : {"portable", "avx2", "avx512", "neon"}) {
    try {
      backend::make_cpu_backend(1, level);
      levels.emplace_back(level);
    } catch (const Error&) {
      continue;  // not on this processor
    }
  }
  return levels;
}

inline std::vector<World> worlds() {
  std::vector<World> result;
  const std::vector<std::string> levels = available_levels();
  for (const std::string& level : levels) result.push_back({level, level == levels.back() ? 2 : 1});
  for (const int threads : {1, 3, 5}) result.push_back({levels.back(), threads});
  return result;
}

inline std::string describe(const World& world) {
  return world.level + ", " + std::to_string(world.threads) + " threads";
}

/// A plan of `rows` rows of one sequence, a chain from `committed` on.
inline backend::Plan chain_plan(int32_t rows, int32_t committed, bool keep_all, std::span<const int32_t> pages,
                                int32_t slot = 0) {
  backend::Plan plan;
  plan.begin_sequence(committed, slot, pages, keep_all);
  for (int32_t row = 0; row < rows; ++row) plan.add_row(0, committed + row, row - 1, true);
  return plan;
}

}  // namespace tensorfold::testing
