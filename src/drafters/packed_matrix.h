// A float matrix packed to MLX affine 4 or 8 bits while it is loaded. A drafter's rounding changes how often drafts
// land, never a reply, and a quarter of the bytes makes a draft three times cheaper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/tensor_store.h"

namespace tensorfold::drafters {

/// Holds the packed form of one matrix for as long as a backend repacks it.
class PackedMatrix : public format::TensorStore {
 public:
  /// Reads `source` (not quantised, inputs a multiple of 64) and packs groups of 64: scale = max((max - min) / n, 1e-8)
  /// and bias = min, both rounded to bf16 first, code = clamp(round((w - bias) / scale), 0, n) with n = 2^bits - 1.
  PackedMatrix(const format::Linear& source, int32_t bits);
  [[nodiscard]] const format::TensorInfo* find(std::string_view name) const override;
  [[nodiscard]] std::vector<std::string> names() const override;
  void read(const format::TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const override;
  /// The matrix as backends take it; valid while this object lives.
  [[nodiscard]] format::Linear linear() const;

 private:
  struct Part {
    format::TensorInfo info;
    std::vector<std::byte> bytes;
  };
  Part& part(size_t index) { return parts_[index]; }
  void pack_rows(const format::Linear& source, int32_t bits);
  void pack_some(const format::Linear& source, int32_t bits, int64_t first, int64_t end);

  std::vector<Part> parts_;  ///< weight, scales, biases
  format::Linear linear_;
};

}  // namespace tensorfold::drafters
