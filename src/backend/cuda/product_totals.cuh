// The epilogue of a product whose tiles are mostly whole: few instructions and wide stores; else product_outputs.cuh.
#pragma once

#include "backend/cuda/product_outputs.cuh"

namespace tensorfold::backend::cuda {

/// A lane's two neighbouring rows of an output, of all lanes, to two neighbouring outputs of a row.
__device__ inline uint32_t transposed(float first, float second) {
  uint32_t pair = 0;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pair));
  return pair;
}

/// A whole tile as bf16: 8x8 blocks, written 128 bytes at a time. `to`: the first row's first output.
template <int RowTiles>
__device__ inline void write_tiles(const float (&total)[RowTiles][4], bool swiglu, __nv_bfloat16* to,
                                   int64_t row_tile_step, int exist, int lane) {
  auto* at = reinterpret_cast<uint32_t*>(to) + lane;
#pragma unroll
  for (int n = 0; n < RowTiles; ++n) {
    const bool exists = n * 8 + lane / 4 < exist;
    const float(&t)[4] = total[n];
    if (swiglu) {
      const uint32_t pair = transposed(t[0] / (1.0F + __expf(-t[0])) * t[2], t[1] / (1.0F + __expf(-t[1])) * t[3]);
      if (exists) *at = pair;
    } else {
      const uint32_t low = transposed(t[0], t[1]);
      const uint32_t high = transposed(t[2], t[3]);
      if (exists) at[0] = low;
      if (exists) at[32] = high;
    }
    at += row_tile_step / 2;
  }
}

/// A whole tile as fp32 rows, or added to them. `to`: the first row's first output.
template <int RowTiles>
__device__ inline void write_rows(const float (&total)[RowTiles][4], bool add, float* to, int64_t stride, int exist,
                                  int lane) {
  constexpr int batch = RowTiles < 8 ? RowTiles : 8;
  float* at = to + (lane % 4) * 2 * stride + lane / 4;
#pragma unroll
  for (int part = 0; part < RowTiles; part += batch) {
    float before[batch][4];
#pragma unroll
    for (int n = 0; n < batch; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        before[n][i] = add && (part + n) * 8 + (lane % 4) * 2 + i % 2 < exist
                           ? at[n * 8 * stride + (i % 2) * stride + i / 2 * 8]
                           : 0.0F;
#pragma unroll
    for (int n = 0; n < batch; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if ((part + n) * 8 + (lane % 4) * 2 + i % 2 < exist)
          at[n * 8 * stride + (i % 2) * stride + i / 2 * 8] =
              add ? before[n][i] + total[part + n][i] : total[part + n][i];
    at += batch * 8 * stride;
  }
}

/// Writes a tile's totals; total[n]: as write_outputs has them. Rows' scales and what is added are all read first.
template <int RowTiles>
__device__ inline void write_totals(const RowProduct& p, float (&total)[RowTiles][4], int tile, int first_row,
                                    int end_row, int lane) {
  if (tile >= p.weights.tiles) return;
  const bool swiglu = p.epilogue == ProductEpilogue::swiglu;
  const int outputs = swiglu ? p.weights.outputs / 2 : p.weights.outputs;
  const int width = p.weights.paired != 0 ? 8 : kTileOutputs;
  const bool whole = (tile + 1) * width <= outputs && swiglu == (p.weights.paired != 0);
  const int64_t column = p.output.offset + static_cast<int64_t>(tile) * width;
  const bool tiles = whole && p.output.bf16 != 0 && p.epilogue != ProductEpilogue::add;
  const bool rows = whole && p.output.bf16 == 0 && !swiglu;
  const float factor = p.weights.format == WeightFormat::affine4 && (tiles || rows) ? kAffineFactor : 1.0F;
#pragma unroll
  for (int n = 0; n < RowTiles; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row + n * 8 + (lane % 4) * 2 + i;
      const float scale = p.row_scales != nullptr && row < end_row ? p.row_scales[row] : 1.0F;
      total[n][i] = total[n][i] * factor * scale;
      total[n][i + 2] = total[n][i + 2] * factor * scale;
    }
  if (tiles) {
    write_tiles<RowTiles>(total, swiglu,
                          static_cast<__nv_bfloat16*>(p.output.data) + first_row * p.output.stride + column * 8,
                          p.output.stride * 8, end_row - first_row, lane);
  } else if (rows) {
    write_rows<RowTiles>(total, p.epilogue == ProductEpilogue::add,
                         static_cast<float*>(p.output.data) + first_row * p.output.stride + column, p.output.stride,
                         end_row - first_row, lane);
  } else {
#pragma unroll 1
    for (int n = 0; n < RowTiles; ++n) {
      float out[1][4] = {};
#pragma unroll
      for (int m = 0; m < RowTiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (m == n) out[0][i] = total[m][i];
      float before[1][4];
      const int row = first_row + n * 8;
      load_residual<1>(p, before, tile, row, end_row - row, lane);
      write_outputs<1>(p, out, before, nullptr, tile, row, end_row - row, lane);
    }
  }
}

}  // namespace tensorfold::backend::cuda
