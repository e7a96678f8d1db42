// The epilogue of a product: store, add to the residual, or SwiGLU.
#pragma once

#include "backend/cuda/row_product.h"

namespace tensorfold::backend::cuda {

/// Writes one tile's sums for rows first_row.. of which `exist` exist. sum[n][0], [1]: output l/4 of the tile, rows
/// 8 n + 2 (l % 4) and + 1; [2], [3]: output l/4 + 8.
template <int RowTiles>
__device__ inline void write_outputs(const RowProduct& p, const float (&sum)[RowTiles][4], int tile, int first_row,
                                     int exist, int lane) {
  const bool add = p.epilogue == ProductEpilogue::add;
  const bool swiglu = p.epilogue == ProductEpilogue::swiglu;
  int columns[2] = {tile * kTileOutputs + lane / 4, tile * kTileOutputs + lane / 4 + 8};
  if (p.weights.paired != 0) {
    const int half = p.weights.outputs / 2;
    columns[0] = tile * 8 + lane / 4;
    columns[1] = columns[0] < half ? columns[0] + half : p.weights.outputs;
    if (columns[0] >= half) columns[0] = p.weights.outputs;
  }
  float before[RowTiles][4] = {};
  if (add) {
#pragma unroll
    for (int n = 0; n < RowTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = n * 8 + (lane % 4) * 2 + i % 2;
        if (row < exist && columns[i / 2] < p.weights.outputs)
          before[n][i] = p.output.get(first_row + row, columns[i / 2]);
      }
  }
#pragma unroll
  for (int n = 0; n < RowTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = n * 8 + (lane % 4) * 2 + i % 2;
      const int column = columns[i / 2];
      if (row >= exist || column >= p.weights.outputs || (swiglu && i >= 2)) continue;
      float value = add ? before[n][i] + sum[n][i] : sum[n][i];
      if (swiglu) value = value / (1.0F + __expf(-value)) * sum[n][(i + 2) % 4];
      p.output.set(first_row + row, column, value);
    }
}

}  // namespace tensorfold::backend::cuda
