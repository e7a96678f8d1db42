// How bf16 activations lie in device memory: tiles of 8 rows, in a tile one 8x8 block (8 inputs of 8 rows, 128 bytes,
// a row's 8 values together) after another. A range of inputs of a tile is contiguous, so one bulk copy brings it; its
// blocks are the 8x8 matrices that ldmatrix and wgmma read without bank conflicts.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

namespace tensorfold::backend::cuda {

/// Index of (row, column) in a tensor whose rows are `stride` values wide (a multiple of 8).
__host__ __device__ inline int64_t tile_index(int64_t row, int64_t column, int64_t stride) {
  return (row / 8) * 8 * stride + (column / 8) * 64 + (row % 8) * 8 + column % 8;
}

/// A tensor as kernels see it: fp32 row-major, or bf16 in tiles. `offset` (a multiple of 8 for bf16) is the first
/// column.
struct Activation {
  void* data = nullptr;
  int64_t stride = 0;
  int64_t offset = 0;
  int64_t width = 0;
  int32_t bf16 = 0;

  __device__ float get(int64_t row, int64_t column) const {
    column += offset;
    if (bf16 != 0) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[tile_index(row, column, stride)]);
    return static_cast<const float*>(data)[row * stride + column];
  }
  __device__ void set(int64_t row, int64_t column, float value) const {
    column += offset;
    if (bf16 != 0)
      static_cast<__nv_bfloat16*>(data)[tile_index(row, column, stride)] = __float2bfloat16_rn(value);
    else
      static_cast<float*>(data)[row * stride + column] = value;
  }
  /// Bytes of group `group` (64 inputs) of tile `tile` begin here; bf16 only.
  __host__ __device__ const uint8_t* group_at(int64_t tile, int64_t group) const {
    return static_cast<const uint8_t*>(data) + (tile * 8 * stride + offset * 8 + group * 512) * 2;
  }
};

}  // namespace tensorfold::backend::cuda
