// The gated delta rule's step and what leads to it, shared by the kernels for prompts, windows, commits and the forward
// program: one source, one order of operations.
#pragma once

#include <cuda_bf16.h>

#include "backend/cuda/gated_delta.h"

namespace tensorfold::backend::cuda {

constexpr int kKeyDim = 128;    // of the step: 8 lanes of 16 key values
constexpr int kWarpsAStep = 8;  // warps of a replay block
constexpr int kRowsAWarp = 4;   // value rows: one for each group of 8 lanes
constexpr int kRowsABlock = kWarpsAStep * kRowsAWarp;

__host__ __device__ inline int64_t channels_of(const GatedDeltaShape& shape) {
  return 2LL * shape.key_heads * shape.key_dim + static_cast<int64_t>(shape.value_heads) * shape.value_dim;
}
__device__ inline float silu(float x) { return x / (1.0F + __expf(-x)); }
__device__ inline float from_bits(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFU, value, step);
  return value;
}

constexpr int kMostTaps = 8;

/// Where the raw inputs of a row's convolution lie, oldest first: rows of the plan, or tail rows t as -1 - t.
struct Taps {
  int source[kMostTaps];
};

__device__ inline Taps find_taps(const int32_t* parents, int kernel, int row) {
  Taps taps;
  int beyond = 0;  // tokens before the window's root
#pragma unroll
  for (int back = 0; back < kMostTaps; ++back) {
    if (back >= kernel) break;
    // `beyond` 1 is the last committed token: the tail's last row.
    taps.source[back] = row >= 0 ? row : -1 - (kernel - 1 - beyond);
    if (row >= 0) row = parents[row];
    if (row < 0) beyond += 1;
  }
  return taps;
}

/// One value row's state, as one of its 8 lanes holds it: key values 32 i + 4 j + c for lane j, i, c < 4.
struct State {
  float s[16];
};

struct StepInputs {
  float4 key[4];
  float4 query[4];
  float value;
  float decay;
  float beta;
};

/// A lane's 16 products in four chains.
__device__ inline float lane_dot(const float (&s)[16], const float4 (&v)[4]) {
  float chain[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    chain[i] = s[i * 4] * v[i].x;
    chain[i] = fmaf(s[i * 4 + 1], v[i].y, chain[i]);
    chain[i] = fmaf(s[i * 4 + 2], v[i].z, chain[i]);
    chain[i] = fmaf(s[i * 4 + 3], v[i].w, chain[i]);
  }
  return (chain[0] + chain[1]) + (chain[2] + chain[3]);
}

/// Sums over the 8 lanes of a row, several at a time.
template <int Count>
__device__ inline void add_lanes(float (&sums)[Count]) {
#pragma unroll
  for (int step = 1; step <= 4; step *= 2) {
    float others[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) others[i] = __shfl_xor_sync(0xFFFFFFFFU, sums[i], step);
#pragma unroll
    for (int i = 0; i < Count; ++i) sums[i] += others[i];
  }
}

/// Sum over 16 products of a lane, then over the 8 lanes of a row: one fixed order.
__device__ inline float dot(const float (&s)[16], const float4 (&v)[4]) {
  float sum[1] = {lane_dot(s, v)};
  add_lanes(sum);
  return sum[0];
}

/// S = S + beta (v - S k) k^T; `product`: S k.
__device__ inline void update(State& state, const StepInputs& in, float product) {
  const float delta = in.beta * (in.value - product);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    state.s[i * 4] = fmaf(delta, in.key[i].x, state.s[i * 4]);
    state.s[i * 4 + 1] = fmaf(delta, in.key[i].y, state.s[i * 4 + 1]);
    state.s[i * 4 + 2] = fmaf(delta, in.key[i].z, state.s[i * 4 + 2]);
    state.s[i * 4 + 3] = fmaf(delta, in.key[i].w, state.s[i * 4 + 3]);
  }
}

/// S = g S; then update.
__device__ inline void step(State& state, const StepInputs& in) {
#pragma unroll
  for (int i = 0; i < 16; ++i) state.s[i] *= in.decay;
  update(state, in, dot(state.s, in.key));
}

/// What a lane of a step block works on.
struct Place {
  int head;
  int key_head;
  int lane;  // of 8
  int row;   // value row
};

__device__ inline Place find_place(const GatedDeltaShape& shape, int part, int rows_a_block) {
  Place place{};
  place.head = static_cast<int>(blockIdx.y);
  place.key_head = place.head / (shape.value_heads / shape.key_heads);
  place.lane = static_cast<int>(threadIdx.x) % 8;
  place.row = part * rows_a_block + static_cast<int>(threadIdx.x) / 8;
  return place;
}

/// Where this lane's four quarters of a state row begin; they lie 32 values apart.
__device__ inline int64_t state_at(const GatedDeltaShape& shape, int slot, const Place& place) {
  return ((static_cast<int64_t>(slot) * shape.value_heads + place.head) * shape.value_dim + place.row) * kKeyDim +
         place.lane * 4;
}

__device__ inline void load_state(State& state, const float* states, const GatedDeltaShape& shape, int slot,
                                  const Place& place) {
  const float* from = states + state_at(shape, slot, place);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *reinterpret_cast<float4*>(&state.s[i * 4]) = *reinterpret_cast<const float4*>(from + i * 32);
}

__device__ inline void store_state(const State& state, float* states, const GatedDeltaShape& shape, int slot,
                                   const Place& place) {
  float* to = states + state_at(shape, slot, place);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *reinterpret_cast<float4*>(to + i * 32) = *reinterpret_cast<const float4*>(&state.s[i * 4]);
}

}  // namespace tensorfold::backend::cuda
