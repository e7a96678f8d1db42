// Repacking of checkpoint matrices into the layout that the product kernels read (row_product.h).
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "backend/cuda/row_product.h"

namespace tensorfold::backend::cuda {

/// Element types of scales, biases and unquantised weights.
enum class ScalarType : int32_t { f32, f16, bf16 };

/// Rows [first_row, first_row + rows) of one checkpoint matrix, in device memory, and where they go.
struct PackSource {
  const uint32_t* codes = nullptr;  ///< affine: [rows][inputs * bits / 32]
  const void* scales = nullptr;     ///< affine: [rows][inputs / group_size]
  const void* biases = nullptr;
  const void* values = nullptr;  ///< not quantised: [rows][inputs]
  ScalarType type = ScalarType::bf16;
  int32_t bits = 4;
  int32_t group_size = 64;
  int32_t inputs = 0;
  int32_t rows = 0;
  int32_t first_output = 0;  ///< output (after stacking) of the first of these rows
};

/// Writes the rows into `data` (PackedWeights::data, zeroed before the first call). Affine format: 4 or fewer bits,
/// groups of a multiple of 64, bf16 scales. Raises *scale_overflow (null: nobody asks) where a scale is too large for
/// the affine format.
void pack_rows(const PackSource& source, uint8_t* data, const PackedWeights& layout, int32_t* scale_overflow,
               cudaStream_t stream);

/// Bytes of a packed matrix.
inline size_t packed_bytes(const PackedWeights& layout) {
  return static_cast<size_t>(layout.blocks) * static_cast<size_t>(layout.block_tiles) *
         static_cast<size_t>(layout.groups) * static_cast<size_t>(group_bytes(layout.format));
}

}  // namespace tensorfold::backend::cuda
