// RMSNorm before a product, divided between the two: the product reads bf16(x gain), and its sums are multiplied by the
// row's scale, rsqrt(mean of x^2 + epsilon). So nothing has to wait for a whole row before the product begins.
//
// The squares' order: of 16 neighbouring values p_j = fma(v[j + 8], v[j + 8], v[j]^2), j < 8, added as a tree of
// neighbours ((p0 + p1) + (p2 + p3)) + ...; 32 chains, chain c adding sixteens c, c + 32, ... in order; then the tree
// of a warp. A tile of 16 outputs of the product before makes its sixteen where it has the values in registers.
#pragma once

#include "backend/cuda/forward_program.h"
#include "backend/cuda/row_values.cuh"

namespace tensorfold::backend::cuda {

constexpr int kSquareValues = 16;

/// Values [16 at, 16 at + 16) of a row: writes them times their gains; returns the sum of their squares.
__device__ inline float scale_sixteen(const Activation& input, int from, const float* gains, const Activation& output,
                                      int row, int at) {
  float v[kSquareValues];
  float4 x[4];
  float4 g[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // all loads before the first store: they are not known to be of other memory
    x[i] = get_four(input, from, at * kSquareValues + i * 4);
    g[i] = *reinterpret_cast<const float4*>(gains + at * kSquareValues + i * 4);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i * 4] = x[i].x;
    v[i * 4 + 1] = x[i].y;
    v[i * 4 + 2] = x[i].z;
    v[i * 4 + 3] = x[i].w;
    set_four(output, row, at * kSquareValues + i * 4,
             {x[i].x * g[i].x, x[i].y * g[i].y, x[i].z * g[i].z, x[i].w * g[i].w});
  }
  float p[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) p[j] = fmaf(v[j + 8], v[j + 8], v[j] * v[j]);
  return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
}

/// One warp: the scales of `Rows` rows from the sums of their `count` sixteens, row after row.
template <int Rows>
__device__ inline void row_scales_of(float (&scales)[Rows], const float* squares, int count, float epsilon, int lane) {
#pragma unroll
  for (int row = 0; row < Rows; ++row) scales[row] = 0.0F;
#pragma unroll 2
  for (int at = lane; at < count; at += 32)
#pragma unroll
    for (int row = 0; row < Rows; ++row) scales[row] += squares[row * count + at];
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) scales[row] += __shfl_xor_sync(0xFFFFFFFFU, scales[row], step);
    scales[row] = rsqrtf(scales[row] / static_cast<float>(count * kSquareValues) + epsilon);
  }
}

/// The gains of a lane's two outputs of a tile.
__device__ inline float2 load_gains(const NextRows& next, int tile, int lane) {
  if (next.gains == nullptr) return {};
  const float* from = next.gains + tile * kTileOutputs + lane / 4;
  return {from[0], from[8]};
}

/// One warp: a tile's outputs (as write_outputs has them), which are a sixteen of each row of the next product.
template <int RowTiles>
__device__ inline void write_scaled_rows(const NextRows& next, const float (&values)[RowTiles][4], const float2& gains,
                                         int tile, int exist, int lane) {
  const int column = tile * kTileOutputs + lane / 4;
  const int64_t sixteens = next.rows.width / kSquareValues;
#pragma unroll
  for (int n = 0; n < RowTiles; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = n * 8 + (lane % 4) * 2 + i;
      float square = fmaf(values[n][i + 2], values[n][i + 2], values[n][i] * values[n][i]);
#pragma unroll
      for (int step = 4; step <= 16; step *= 2) square += __shfl_xor_sync(0xFFFFFFFFU, square, step);
      if (row >= exist) continue;
      next.rows.set(row, column, values[n][i] * gains.x);
      next.rows.set(row, column + 8, values[n][i + 2] * gains.y);
      if (lane < 4) next.squares[row * sixteens + tile] = square;
    }
}

}  // namespace tensorfold::backend::cuda
