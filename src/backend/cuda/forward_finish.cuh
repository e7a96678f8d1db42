// The end of a product's tile inside the forward kernel: slices of several thread blocks are added, then the epilogue.
//
// The same numbers as product_outputs.cuh and scaled_rows.cuh, but row by row in a loop: a phase comes here once, so
// that its code is never in the nearest instruction cache, and straight lines cost about twelve ticks an instruction.
#pragma once

#include "backend/cuda/forward_memory.cuh"
#include "backend/cuda/row_product.cuh"
#include "backend/cuda/scaled_rows.cuh"

namespace tensorfold::backend::cuda {

__device__ inline float* row_scales() { return reinterpret_cast<float*>(forward_memory() + kRowScalesAt); }

/// The rows of a product that exist: one of the plan's first two words, as row_count says.
__device__ inline int rows_of(const RowProduct& p) { return row_counts()[p.row_count - forward_arguments().plan]; }

/// The scales of rows that were not normed (scaled_rows.cuh): the last warp makes them, which never has a tile, while
/// the others multiply.
constexpr int kScaleWarp = kConsumerWarps - 1;
static_assert(kMostBlockTiles <= kScaleWarp);

__device__ inline void make_row_scales(const ProductWork& work, int exist, int lane) {
  const int sixteens = work.product.weights.groups * (kGroupInputs / kSquareValues);
  constexpr int at_once = 4;  // of rows that do not exist, too: the workspace has them
#pragma unroll 1
  for (int row = 0; row < exist; row += at_once) {
    float scales[at_once];
    row_scales_of(scales, work.squares + static_cast<int64_t>(row) * sixteens, sixteens, work.epsilon, lane);
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      if (lane == 0) row_scales()[row + i] = scales[i];
  }
}
// Slices that several thread blocks have: one of them, `owner_of`, adds them. A partial result is its own message: its
// place holds kNoValue, bits that no sum has, until it is there, and again when it has been taken.
constexpr uint32_t kNoValue = 0xFFFFFFFFU;

__device__ inline int owner_of(const PackedWeights& w, int tile) { return tile % w.slices; }

template <int RowTiles>
__device__ inline float4* partial_at(const RowProduct& p, int slice, int tile, int n, int lane) {
  return reinterpret_cast<float4*>(p.partials) +
         ((static_cast<int64_t>(slice) * p.weights.tiles + tile) * RowTiles + n) * 32 + lane;
}
__device__ inline void leave(float4* at, const float4& v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ inline float4 look(const float4* at) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
__device__ inline bool is_there(const float4& v) {
  return __float_as_uint(v.x) != kNoValue && __float_as_uint(v.y) != kNoValue && __float_as_uint(v.z) != kNoValue &&
         __float_as_uint(v.w) != kNoValue;
}

template <int RowTiles>
__device__ inline void leave_slice(const RowProduct& p, const float (&sum)[RowTiles][4], int slice, int tile,
                                   int lane) {
#pragma unroll
  for (int n = 0; n < RowTiles; ++n)
    if (n * 8 < rows_of(p))  // what nobody takes would stay
      leave(partial_at<RowTiles>(p, slice, tile, n, lane), make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]));
}

template <int RowTiles>
struct Sums {
  float at[RowTiles][4];
};

/// A row tile's slice 0 + slice 1 + ... in order. (-0 + x is x, bit for bit.)
__device__ inline float4 take_slices(float4* at, int slices, int64_t stride) {
  constexpr int at_once = 4;
  const float none = __uint_as_float(kNoValue);
  float4 total = make_float4(-0.0F, -0.0F, -0.0F, -0.0F);
#pragma unroll 1
  for (int first = 0; first < slices; first += at_once, at += at_once * stride) {
    float4 part[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) part[i] = look(first + i < slices ? at + i * stride : at);
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (first + i >= slices) continue;
      float4* from = at + i * stride;
      while (!is_there(part[i])) part[i] = look(from);
      leave(from, make_float4(none, none, none, none));
      total.x += part[i].x;
      total.y += part[i].y;
      total.z += part[i].z;
      total.w += part[i].w;
    }
  }
  __syncwarp();
  return total;
}

/// A tensor's elements, counted in 32 bits: programs have few rows.
struct FinishedRows {
  void* data;
  uint32_t stride;
  uint32_t offset;
  bool bf16;
  __device__ explicit FinishedRows(const Activation& a)
      : data(a.data),
        stride(static_cast<uint32_t>(a.stride)),
        offset(static_cast<uint32_t>(a.offset)),
        bf16(a.bf16 != 0) {}
  __device__ uint32_t index(uint32_t row, uint32_t column) const {
    column += offset;
    return bf16 ? (row & ~7U) * stride + (column / 8) * 64 + (row & 7U) * 8 + column % 8 : row * stride + column;
  }
  __device__ float get(uint32_t at) const {
    return bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]) : static_cast<const float*>(data)[at];
  }
  __device__ void set(uint32_t at, float value) const {
    if (bf16)
      static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
    else
      static_cast<float*>(data)[at] = value;
  }
};

/// The end of a tile: its slices, if `sums` is not all there is, and the epilogue. A call, so that the chain's
/// registers are its own.
template <int RowTiles>
__device__ __noinline__ void finish_tile(int operation, Sums<RowTiles> sums, int tile) {
  const auto& work = operation_work<ProductWork>(operation);
  const RowProduct& p = work.product;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int exist = rows_of(p);
  const bool paired = p.weights.paired != 0;
  const int outputs = paired ? p.weights.outputs / 2 : p.weights.outputs;
  const int column = tile * (paired ? 8 : kTileOutputs) + lane / 4;
  const int second = paired ? column + outputs : column + 8;
  const bool has_first = column < outputs;
  const bool has_second = paired ? has_first : second < outputs;
  const bool add = p.epilogue == ProductEpilogue::add;
  const bool swiglu = p.epilogue == ProductEpilogue::swiglu;
  const FinishedRows out(p.output);
  const float2 gains = load_gains(work.next, tile, lane);
  const float factor = p.weights.format == WeightFormat::affine4 ? kAffineFactor : 1.0F;
#pragma unroll 1
  for (int n = 0; n < RowTiles && n * 8 < exist; ++n) {
    float before[2][2];  // of two rows and two outputs
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = n * 8 + i + lane % 4 * 2;
      const bool wanted = add && row < exist;
      before[i][0] = wanted && has_first ? out.get(out.index(row, column)) : 0.0F;
      before[i][1] = wanted && has_second ? out.get(out.index(row, second)) : 0.0F;
    }
    const float(&own)[4] = sums.at[RowTiles - 1];
    float4 sum = make_float4(own[0], own[1], own[2], own[3]);
    if (RowTiles > 1 && n == 0) sum = make_float4(sums.at[0][0], sums.at[0][1], sums.at[0][2], sums.at[0][3]);
    if (p.weights.slices > 1)
      sum = take_slices(partial_at<RowTiles>(p, 0, tile, n, lane), p.weights.slices,
                        static_cast<int64_t>(p.weights.tiles) * RowTiles * 32);
#pragma unroll 1
    for (int i = 0; i < 2 && n * 8 + i < exist; ++i) {
      const int row = n * 8 + i + lane % 4 * 2;
      float a = (i == 0 ? sum.x : sum.y) * factor;
      float b = (i == 0 ? sum.z : sum.w) * factor;
      if (work.squares != nullptr) {
        const float scale = row_scales()[row];
        a *= scale;
        b *= scale;
      }
      if (add) {
        a = (i == 0 ? before[0][0] : before[1][0]) + a;
        b = (i == 0 ? before[0][1] : before[1][1]) + b;
      }
      if (row < exist && has_first) {
        float value = a;
        if (swiglu) value = value / (1.0F + __expf(-value)) * b;
        out.set(out.index(row, column), value);
      }
      if (row < exist && has_second && !swiglu) out.set(out.index(row, second), b);
      if (work.next.gains == nullptr) continue;
      float square = fmaf(b, b, a * a);
#pragma unroll
      for (int step = 4; step <= 16; step *= 2) square += __shfl_xor_sync(0xFFFFFFFFU, square, step);
      if (row >= exist) continue;
      const FinishedRows next(work.next.rows);
      next.set(next.index(row, column), a * gains.x);
      next.set(next.index(row, column + 8), b * gains.y);
      if (lane < 4) work.next.squares[row * (work.next.rows.width / kSquareValues) + tile] = square;
    }
  }
}

}  // namespace tensorfold::backend::cuda
