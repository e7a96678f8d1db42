// Where tensors come from: the interface between files (or synthetic weights) and the backends that repack them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::format {

/// Element types a checkpoint may hold.
enum class DataType { f32, f16, bf16, f8_e4m3, f8_e8m0, i8, u8, i16, u16, i32, u32, i64, u64, boolean };

/// Bytes of one element.
int64_t size_of(DataType type);
/// The spelling of safetensors headers: "F32", "BF16", "F8_E4M3", ...
std::string_view to_string(DataType type);
/// The type of that spelling, or nothing.
std::optional<DataType> parse_data_type(std::string_view name);

/// One tensor's description; `shape` is row-major, empty for a scalar.
struct TensorInfo {
  std::string name;
  DataType type = DataType::f32;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  // Where a file-backed store finds it; unused by others.
  int32_t file = -1;
  uint64_t offset = 0;
};

struct SyntheticTensor;

/// The bytes of one tensor, readable after its store is gone: for tables that stay on disk. Reading is thread-safe.
class TensorBytes {
 public:
  virtual ~TensorBytes() = default;
  /// As TensorStore::read.
  virtual void read(uint64_t offset, std::span<std::byte> out) const = 0;
};

/// A set of named tensors that can be read in pieces. Reading is thread-safe.
class TensorStore {
 public:
  virtual ~TensorStore() = default;
  /// The tensor of this name, or null. The pointer lives as long as the store.
  [[nodiscard]] virtual const TensorInfo* find(std::string_view name) const = 0;
  /// All names, sorted.
  [[nodiscard]] virtual std::vector<std::string> names() const = 0;
  /// Copies out.size() bytes of `tensor` from byte `offset` on. Throws Error(io) or Error(corrupt_file).
  virtual void read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const = 0;
  /// A file-backed store keeps the file open and reads nothing yet; others may copy the tensor.
  [[nodiscard]] virtual std::shared_ptr<const TensorBytes> keep_open(const TensorInfo& tensor) const;
  /// Says that the bytes of `tensor` will not be read again, so that page cache may be given back.
  virtual void release(const TensorInfo&) const {}
  /// How the tensor is made, where no file holds it, so that a device can make it in place; null: it must be read.
  [[nodiscard]] virtual const SyntheticTensor* recipe(const TensorInfo&) const { return nullptr; }
  /// Says that the bytes of `tensor` will be read soon.
  virtual void expect(const TensorInfo&) const {}
};

/// MLX affine quantisation: w = scale * code + bias, one (scale, bias) pair for each `group_size` inputs.
struct AffineFormat {
  int32_t bits = 4;
  int32_t group_size = 64;
  bool operator==(const AffineFormat&) const = default;
};

/// A weight matrix as it lies on disk: `stack` matrices of [outputs, inputs] (stack > 1: routed experts).
/// Quantised: weight u32 [.., outputs, inputs*bits/32], scales and biases [.., outputs, inputs/group_size].
/// Not quantised: weight f32, f16 or bf16 [.., outputs, inputs].
struct Linear {
  const TensorStore* store = nullptr;
  int64_t stack = 1;
  int64_t outputs = 0;
  int64_t inputs = 0;
  std::optional<AffineFormat> affine;
  const TensorInfo* weight = nullptr;
  const TensorInfo* scales = nullptr;
  const TensorInfo* biases = nullptr;
  /// Bytes a product reads for one of the `stack` matrices.
  [[nodiscard]] uint64_t bytes_read() const;
};

}  // namespace tensorfold::format
