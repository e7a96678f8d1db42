// One head's vector before attention (norm, rotation, cache row) and one value after it (merge of partial results,
// gate).
#pragma once

#include <cuda_bf16.h>

#include "backend/cuda/attention.h"

namespace tensorfold::backend::cuda {

constexpr int kMostHeadDim = 256;

__device__ inline uint16_t* key_row(const PlanView& plan, const AttentionArguments& a, int row) {
  const DeviceSequence& sequence = plan.sequences()[plan.owner()[row]];
  const int record = plan.records()[row];
  if (record >= 0) return a.window_keys + record * a.width;
  const int position = plan.positions()[row];
  const int64_t page = plan.pages()[sequence.first_page + position / a.page_tokens];
  return a.pages + (page * a.page_tokens + position % a.page_tokens) * a.width;
}

/// One warp: norm and rotation of one head's vector of 32 PerLane values, one rounding to bf16 at the end. `values`:
/// 2 kMostHeadDim floats of shared memory of this warp.
template <int PerLane>
__device__ inline void write_head_of(const AttentionArguments& a, const Activation& from, int row, int column,
                                     const float* norm, int position, float* values, uint16_t* to, int lane) {
  float own[PerLane];
#pragma unroll
  for (int i = 0; i < PerLane; ++i) own[i] = from.get(row, column + lane * PerLane + i);
  auto* turns = reinterpret_cast<float2*>(values + kMostHeadDim);  // sine and cosine of each pair
  for (int pair = lane; pair < a.frequency_count; pair += 32) {
    float2 turn{};
    sincosf(static_cast<float>(position) * a.frequencies[pair], &turn.x, &turn.y);
    turns[pair] = turn;
  }
  if (norm != nullptr) {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < PerLane; ++i) sum = fmaf(own[i], own[i], sum);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
    const float scale = rsqrtf(sum / static_cast<float>(32 * PerLane) + a.epsilon);
#pragma unroll
    for (int i = 0; i < PerLane; ++i) own[i] = own[i] * scale * norm[lane * PerLane + i];
  }
#pragma unroll
  for (int i = 0; i < PerLane; ++i) values[lane * PerLane + i] = own[i];
  __syncwarp();
#pragma unroll
  for (int i = 0; i < PerLane; ++i) {
    const int at = lane * PerLane + i;
    float value = own[i];
    if (at < 2 * a.frequency_count) {
      const bool is_first = a.interleaved != 0 ? at % 2 == 0 : at < a.frequency_count;
      const int pair = a.interleaved != 0 ? at / 2 : is_first ? at : at - a.frequency_count;
      const float other = values[a.interleaved != 0 ? at ^ 1 : is_first ? at + a.frequency_count : pair];
      const float2 turn = turns[pair];
      value = is_first ? value * turn.y - other * turn.x : value * turn.y + other * turn.x;
    }
    to[at] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
  __syncwarp();
}

__device__ inline void write_head(const AttentionArguments& a, const Activation& from, int row, int column,
                                  const float* norm, int position, float* values, uint16_t* to, int lane) {
  if (a.head_dim == 256)
    write_head_of<8>(a, from, row, column, norm, position, values, to, lane);
  else
    write_head_of<4>(a, from, row, column, norm, position, values, to, lane);
}

/// Value `at` of one (row, head): its partial results merged in order, and the output gate.
__device__ inline void merge_value(const AttentionArguments& a, const AttentionRow& where, int row, int head, int at) {
  const int64_t first = where.slot - where.first_partition;
  float largest = -INFINITY;
#pragma unroll 8
  for (int p = where.begin; p < where.end; ++p) largest = fmaxf(largest, a.sums[(first + p) * a.heads + head].x);
  float sum = 0.0F;
  float value = 0.0F;
#pragma unroll 8
  for (int p = where.begin; p < where.end; ++p) {
    const int64_t slot = (first + p) * a.heads + head;
    const float2 part = a.sums[slot];
    const float share = part.x == -INFINITY ? 0.0F : __expf(part.x - largest);
    sum = fmaf(part.y, share, sum);
    value = fmaf(a.partials[slot * a.head_dim + at], share, value);
  }
  value = value / sum;
  if (a.gated != 0) {
    const float gate = a.query.get(row, (head * 2 + 1) * a.head_dim + at);
    value = value / (1.0F + __expf(-gate));
  }
  a.output.set(row, static_cast<int64_t>(head) * a.head_dim + at, value);
}

}  // namespace tensorfold::backend::cuda
