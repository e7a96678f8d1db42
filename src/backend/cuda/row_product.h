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

/// How a weight matrix lies in device memory: tiles of 16 outputs, `block_tiles` tiles a block; in a block the groups
/// of 64 inputs one after another, in a group its tiles as tensor-core fragments (affine: 512 bytes of codes, then 64
/// bytes of scales and biases). A thread block reads a block front to back, so that few large copies bring it.
enum class WeightFormat : int32_t { affine4, dense };

constexpr int kTileOutputs = 16;
constexpr int kGroupInputs = 64;
constexpr int kMostSlices = 16;
constexpr int kMostRowsAProduct = 32;
constexpr int kMostBlockTiles = 17;

/// Bytes of one group of one tile.
__host__ __device__ constexpr int group_bytes(WeightFormat format) {
  return format == WeightFormat::affine4 ? 512 + 64 : 2048;
}

/// The number of K slices of a matrix of `tiles` tiles and `groups` groups: one where there are tiles enough to keep a
/// large GPU busy, else more, of at least 4 groups each.
constexpr int slice_count(int tiles, int groups) {
  const int wanted = tiles >= 640 ? 1 : tiles >= 320 ? 4 : tiles >= 160 ? 8 : kMostSlices;
  const int possible = groups / 4 < 1 ? 1 : groups / 4;
  return wanted < possible ? wanted : possible;
}
/// First group of slice `slice`.
__host__ __device__ constexpr int slice_begin(int groups, int slices, int slice) { return groups * slice / slices; }

struct PackedWeights {
  const uint8_t* data = nullptr;
  WeightFormat format = WeightFormat::affine4;
  int32_t outputs = 0;
  int32_t tiles = 0;        ///< of 16 outputs
  int32_t block_tiles = 1;  ///< tiles of a block
  int32_t blocks = 0;
  int32_t groups = 0;  ///< of 64 inputs
  int32_t slices = 1;
  /// Tiles hold 8 outputs of the first half over 8 of the second (two stacked matrices of equal size).
  int32_t paired = 0;
};

/// The layout of a matrix for a GPU of `processors` multiprocessors: blocks of such a height that each multiprocessor
/// gets about the same. Only speed depends on it.
inline PackedWeights make_layout(WeightFormat format, int outputs, int inputs, bool paired, int processors) {
  PackedWeights w;
  w.format = format;
  w.outputs = outputs;
  w.paired = paired ? 1 : 0;
  w.tiles = paired ? (outputs / 2 + 7) / 8 : (outputs + kTileOutputs - 1) / kTileOutputs;
  w.groups = inputs / kGroupInputs;
  w.slices = slice_count(w.tiles, w.groups);
  const int units = w.tiles * w.slices;
  const int most = format == WeightFormat::affine4 ? kMostBlockTiles : 10;
  const int passes = (units + processors * most - 1) / (processors * most);
  w.block_tiles = (units + processors * passes - 1) / (processors * passes);
  w.blocks = (w.tiles + w.block_tiles - 1) / w.block_tiles;
  return w;
}

enum class ProductEpilogue : int32_t { store, add, swiglu };

struct RowProduct {
  PackedWeights weights;
  Activation input;                    ///< bf16 tiles, K columns
  const int32_t* row_count = nullptr;  ///< on the device: rows that exist
  int32_t first_row = 0;               ///< a multiple of 8: rows [first_row, first_row + 8 * row tiles)
  const float* row_scales = nullptr;   ///< a row's sums are multiplied by its scale: rows that were not normed
  Activation output;
  ProductEpilogue epilogue = ProductEpilogue::store;
  float* partials = nullptr;  ///< row_product_partials(..) floats; of a forward program: all bits set between launches
  uint32_t* arrivals = nullptr;  ///< row_product_arrivals(..) words, zero between launches
};

/// How a launch is cut; only speed.
struct RowProductShape {
  int32_t blocks = 0;            ///< thread blocks
  int32_t shared_bytes = 98304;  ///< a thread block's ring of stages
  int32_t stages = 2;            ///< of that ring
};

size_t row_product_partials(const PackedWeights& weights, int row_tiles);
size_t row_product_arrivals(const PackedWeights& weights);

/// row_tiles: 1, 2 or 4 tiles of 8 rows. The launch may overlap the end of the kernel before it in the stream.
void launch_row_product(const RowProduct& product, int row_tiles, const RowProductShape& shape, cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
