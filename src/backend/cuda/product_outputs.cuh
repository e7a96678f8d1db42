// The epilogue of a product: store, add to the residual, or SwiGLU.
#pragma once

#include "backend/cuda/matrix_unit.cuh"
#include "backend/cuda/row_product.h"

namespace tensorfold::backend::cuda {

/// The columns of a lane's two outputs of a tile; one that does not exist is p.weights.outputs.
struct OutputColumns {
  int at[2];
  __device__ OutputColumns(const PackedWeights& w, int tile, int lane)
      : at{tile * kTileOutputs + lane / 4, tile * kTileOutputs + lane / 4 + 8} {
    if (w.paired == 0) return;
    const int half = w.outputs / 2;
    at[0] = tile * 8 + lane / 4;
    at[1] = at[0] < half ? at[0] + half : w.outputs;
    if (at[0] >= half) at[0] = w.outputs;
  }
};

/// What the residual epilogue adds to.
template <int RowTiles>
__device__ inline void load_residual(const RowProduct& p, float (&before)[RowTiles][4], int tile, int first_row,
                                     int exist, int lane) {
  const OutputColumns columns(p.weights, tile, lane);
#pragma unroll
  for (int n = 0; n < RowTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = n * 8 + (lane % 4) * 2 + i % 2;
      before[n][i] = p.epilogue == ProductEpilogue::add && row < exist && columns.at[i / 2] < p.weights.outputs
                         ? p.output.get(first_row + row, columns.at[i / 2])
                         : 0.0F;
    }
}

/// Writes one tile's sums for rows first_row.. of which `exist` exist, and leaves in `sum` what was written. sum[n][0],
/// [1]: output l/4 of the tile, rows 8 n + 2 (l % 4) and + 1; [2], [3]: output l/4 + 8. `before`: of load_residual.
/// `scales`: of the rows from first_row on, if they were not normed (scaled_rows.cuh).
template <int RowTiles>
__device__ inline void write_outputs(const RowProduct& p, float (&sum)[RowTiles][4], const float (&before)[RowTiles][4],
                                     const float* scales, int tile, int first_row, int exist, int lane) {
  const bool add = p.epilogue == ProductEpilogue::add;
  const bool swiglu = p.epilogue == ProductEpilogue::swiglu;
  const OutputColumns columns(p.weights, tile, lane);
  const float factor = p.weights.format == WeightFormat::affine4 ? kAffineFactor : 1.0F;
#pragma unroll
  for (int n = 0; n < RowTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = n * 8 + (lane % 4) * 2 + i % 2;
      sum[n][i] *= factor;
      if (scales != nullptr && row < exist) sum[n][i] *= scales[row];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = n * 8 + (lane % 4) * 2 + i % 2;
      const int column = columns.at[i / 2];
      if (add) sum[n][i] = before[n][i] + sum[n][i];
      if (row >= exist || column >= p.weights.outputs || (swiglu && i >= 2)) continue;
      float value = sum[n][i];
      if (swiglu) value = value / (1.0F + __expf(-value)) * sum[n][i + 2];
      p.output.set(first_row + row, column, value);
    }
  }
}

template <int RowTiles>
__device__ inline void write_outputs(const RowProduct& p, float (&sum)[RowTiles][4], int tile, int first_row, int exist,
                                     int lane) {
  float before[RowTiles][4];
  load_residual<RowTiles>(p, before, tile, first_row, exist, lane);
  write_outputs<RowTiles>(p, sum, before, p.row_scales != nullptr ? p.row_scales + first_row : nullptr, tile, first_row,
                          exist, lane);
}

}  // namespace tensorfold::backend::cuda
