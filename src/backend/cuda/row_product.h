// Products of few rows: every weight is read once from device memory and meets up to 32 rows.
//
// y[row][output] = sum over K of w[output][k] x[row][k]. K is cut into `slices` by the weight's shape alone (see
// slice_count); inside a slice one chain of tensor-core steps in k order; slices are added in index order in fp32.
// The row count picks the kernel's width (8, 16, 32), the machine's size picks who computes a slice; neither changes
// an order.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "backend/cuda/activation.cuh"

namespace tensorfold::backend::cuda {

/// How a weight matrix lies in device memory: blocks of 128 outputs, in each the groups of 64 inputs one after another,
/// in each group 8 tiles of 16 outputs as tensor-core fragments (affine: codes of all tiles, then scales of all tiles).
enum class WeightFormat : int32_t { affine4, dense };

constexpr int kTileOutputs = 16;
constexpr int kBlockTiles = 8;
constexpr int kBlockOutputs = kTileOutputs * kBlockTiles;
constexpr int kGroupInputs = 64;
constexpr int kMostSlices = 16;
constexpr int kMostRowsAProduct = 32;

/// Bytes of one group of one block.
__host__ __device__ constexpr int group_bytes(WeightFormat format) {
  return format == WeightFormat::affine4 ? 8 * (512 + 64) : 8 * 2048;
}

/// The number of K slices of a matrix with `groups` groups of 64 inputs: at least 4 groups each, at most 16 slices.
constexpr int slice_count(int groups) {
  const int slices = groups / 4;
  return slices < 1 ? 1 : (slices > kMostSlices ? kMostSlices : slices);
}
/// First group of slice `slice`.
__host__ __device__ constexpr int slice_begin(int groups, int slices, int slice) { return groups * slice / slices; }

struct PackedWeights {
  const uint8_t* data = nullptr;
  WeightFormat format = WeightFormat::affine4;
  int32_t outputs = 0;
  int32_t blocks = 0;  ///< of 128 outputs
  int32_t groups = 0;  ///< of 64 inputs
  int32_t slices = 1;
  /// Tiles hold 8 outputs of the first half over 8 of the second (two stacked matrices of equal size).
  int32_t paired = 0;
};

enum class ProductEpilogue : int32_t { store, add, swiglu };

struct RowProduct {
  PackedWeights weights;
  Activation input;                    ///< bf16 tiles, K columns
  const int32_t* row_count = nullptr;  ///< on the device: rows that exist
  int32_t first_row = 0;               ///< a multiple of 8: rows [first_row, first_row + 8 * row tiles)
  Activation output;
  ProductEpilogue epilogue = ProductEpilogue::store;
  float* partials = nullptr;  ///< row_product_partials(..) floats
  uint32_t* flags = nullptr;  ///< row_product_flags(..) words, zero between launches
};

struct RowProductShape {
  int32_t blocks = 0;  ///< thread blocks to launch
  int32_t stages = 4;
};

size_t row_product_partials(int blocks, int row_tiles);
size_t row_product_flags(int blocks);

/// row_tiles: 1, 2 or 4 tiles of 8 rows. The launch may overlap the end of the kernel before it in the stream.
void launch_row_product(const RowProduct& product, int row_tiles, const RowProductShape& shape, cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
