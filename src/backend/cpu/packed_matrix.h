// How a weight matrix lies in memory for the CPU kernels.
//
// Outputs go in tiles of kTileOutputs rows, inputs in slices of kSliceInputs. A tile's slices follow each other, so a
// thread that computes a range of tiles reads one contiguous stream. Inside a slice stand the groups' scales
// [output][group], their biases, then the codes in 64-byte words: for each run of inputs, one word an output. A word is
// arranged so that 32-bit lane l always holds inputs k = l mod 16 (the dot product's lanes):
//   nibble  128 inputs: nibble j of lane l is input 16 j + l
//   byte     64 inputs: byte j of lane l is input 16 j + l
//   bf16     32 inputs: half j of lane l is input 16 j + l
//   f32      16 inputs
// Missing outputs and inputs (padding to a tile, to kInputPadding) are zero weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "format/tensor_store.h"

namespace tensorfold::backend::cpu {

inline constexpr int64_t kTileOutputs = 4;
inline constexpr int64_t kSliceInputs = 1024;
inline constexpr int64_t kInputPadding = 128;

/// Memory aligned to a cache line, not initialised. Large blocks ask the system for huge pages: with small ones the
/// address translations cost a third of the read bandwidth.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  /// Throws Error(capacity) naming `what` when memory ends.
  AlignedBytes(size_t bytes, const char* what);
  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(memory_.get()); }

 private:
  friend class WeightMemory;
  std::shared_ptr<std::byte> memory_;
  size_t size_ = 0;
};

/// Hands out memory for matrices from large blocks, so that small ones lie on huge pages too. A block lives as long as
/// anything in it.
class WeightMemory {
 public:
  /// Throws Error(capacity).
  AlignedBytes take(size_t bytes);

 private:
  static constexpr size_t kBlockBytes = size_t{64} << 20;
  AlignedBytes block_;
  size_t used_ = 0;
};

enum class CodeKind { nibble, byte, bf16, f32 };

struct PackedMatrix {
  CodeKind kind = CodeKind::f32;
  bool wide_pairs = false;  ///< scales and biases are f32, not bf16
  int64_t group = 0;        ///< inputs a group; 0: not quantised
  int64_t outputs = 0;
  int64_t inputs = 0;
  int64_t padded_inputs = 0;
  int64_t tiles = 0;
  int64_t tile_bytes = 0;
  AlignedBytes memory;

  [[nodiscard]] int64_t slices() const { return (padded_inputs + kSliceInputs - 1) / kSliceInputs; }
  [[nodiscard]] int64_t slice_inputs(int64_t slice) const {
    const int64_t left = padded_inputs - slice * kSliceInputs;
    return left < kSliceInputs ? left : kSliceInputs;
  }
  /// Bytes of the scales and biases, and of the codes, of a slice of `count` inputs.
  [[nodiscard]] int64_t pair_bytes(int64_t count) const;
  [[nodiscard]] int64_t code_bytes(int64_t count) const;
  [[nodiscard]] const std::byte* tile(int64_t index) const { return memory.data() + index * tile_bytes; }
};

/// Reads and repacks one matrix (of `linear.stack` matrices, number `member`), in parallel, each byte once.
PackedMatrix pack_matrix(const format::Linear& linear, int64_t member, ThreadPool& threads, WeightMemory& memory);

/// The codes of one row as it lies on disk: a little-endian stream of `bits` each.
void unpack_affine_codes(std::span<const std::byte> row, int32_t bits, std::span<uint8_t> codes);
/// Throws Error(unsupported or corrupt_file) unless the linear's tensors have the types and sizes it claims.
void check_linear(const format::Linear& linear);

}  // namespace tensorfold::backend::cpu
