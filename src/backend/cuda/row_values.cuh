// Pieces of row-wise kernels: four neighbouring values at once; one value of the draft block's convolution.
#pragma once

#include "backend/cuda/row_kernels.h"

namespace tensorfold::backend::cuda {

/// Four neighbouring values; `column` a multiple of 4 inside the row.
__device__ inline float4 get_four(const Activation& from, int row, int column) {
  if (from.bf16 == 0 && (from.stride + from.offset) % 4 == 0 && from.stride % 4 == 0)
    return *reinterpret_cast<const float4*>(static_cast<const float*>(from.data) + row * from.stride + from.offset +
                                            column);
  return {from.get(row, column), from.get(row, column + 1), from.get(row, column + 2), from.get(row, column + 3)};
}

__device__ inline void set_four(const Activation& to, int row, int column, const float4& values) {
  if (to.bf16 != 0 && to.offset % 4 == 0) {
    const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(values.x, values.y),
                                     __floats2bfloat162_rn(values.z, values.w)};
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(to.data) + tile_index(row, to.offset + column, to.stride)) =
        *reinterpret_cast<const uint2*>(pairs);
    return;
  }
  to.set(row, column, values.x);
  to.set(row, column + 1, values.y);
  to.set(row, column + 2, values.z);
  to.set(row, column + 3, values.w);
}

/// y_row[c], see backend::BlockConvolution.
__device__ inline void convolve_block_value(const BlockConvolutionArguments& a, int row, int parent, int c) {
  const auto channels = static_cast<int>(a.input.width);
  const int groups = channels / a.group;
  const int at = a.side * 2;
  const float now = a.base[at * channels + c] + a.dynamic.get(row, at * groups + c / a.group);
  float value = now * a.input.get(row, c);
  if (parent >= 0) {
    const float before = a.base[(at + 1) * channels + c] + a.dynamic.get(row, (at + 1) * groups + c / a.group);
    value = fmaf(before, a.input.get(parent, c), value);
  }
  a.output.set(row, c, a.add != 0 ? a.output.get(row, c) + value : value);
}

}  // namespace tensorfold::backend::cuda
