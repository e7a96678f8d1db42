// One head's vector before attention (norm, rotation, cache row) and one value after it (merge of partial results,
// gate).
#pragma once

#include <cuda_bf16.h>

#include "backend/cuda/attention.h"
#include "backend/cuda/key_place.cuh"

namespace tensorfold::backend::cuda {

constexpr int kMostHeadDim = 256;

/// Where a row's keys and values go.
__device__ inline KeyPlace key_row(const PlanView& plan, const AttentionArguments& a, int row) {
  const DeviceSequence& sequence = plan.sequences()[plan.owner()[row]];
  const int record = plan.records()[row];
  if (record >= 0) return record_place(a.window_keys, record, a.width);
  const int position = plan.positions()[row];
  const int64_t page = plan.pages()[sequence.first_page + position / a.page_tokens];
  return page_place(a.pages, page, position % a.page_tokens, a.page_tokens, a.width);
}

/// One warp: norm and rotation of one head's vector of 32 PerLane values, one rounding to bf16 at the end; it becomes
/// the chunks of `to` from `first_chunk`. `values`: 2 kMostHeadDim floats of shared memory of this warp.
template <int PerLane>
__device__ inline void write_head_of(const AttentionArguments& a, const Activation& from, int row, int column,
                                     const float* norm, int position, float* values, const KeyPlace& to,
                                     int64_t first_chunk, int lane) {
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
  alignas(16) __nv_bfloat162 pairs[PerLane / 2];
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
    if (i % 2 == 0)
      pairs[i / 2].x = __float2bfloat16_rn(value);
    else
      pairs[i / 2].y = __float2bfloat16_rn(value);
  }
  uint16_t* const at = to.chunk(first_chunk + lane * PerLane / 8) + lane * PerLane % 8;
  if constexpr (PerLane == 8)
    *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(pairs);
  else
    *reinterpret_cast<uint2*>(at) = *reinterpret_cast<const uint2*>(pairs);
  __syncwarp();
}

__device__ inline void write_head(const AttentionArguments& a, const Activation& from, int row, int column,
                                  const float* norm, int position, float* values, const KeyPlace& to,
                                  int64_t first_chunk, int lane) {
  if (a.head_dim == 256)
    write_head_of<8>(a, from, row, column, norm, position, values, to, first_chunk, lane);
  else
    write_head_of<4>(a, from, row, column, norm, position, values, to, first_chunk, lane);
}

/// One warp: a head's values, as they are.
__device__ inline void write_value_head(const AttentionArguments& a, int row, int column, const KeyPlace& to,
                                        int64_t first_chunk, int lane) {
  for (int chunk = lane; chunk < a.head_dim / 8; chunk += 32) {
    alignas(16) __nv_bfloat162 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs[i] = __floats2bfloat162_rn(a.value.get(row, column + chunk * 8 + i * 2),
                                       a.value.get(row, column + chunk * 8 + i * 2 + 1));
    *reinterpret_cast<uint4*>(to.chunk(first_chunk + chunk)) = *reinterpret_cast<const uint4*>(pairs);
  }
}

/// One warp: what one of a row's heads becomes before attention: a query of the workspace, a key or a value of the
/// cache; `head` counts the queries (if there are any), then the keys, then the values.
__device__ inline void prepare_head(const PlanView& plan, const AttentionArguments& a, int row, int head, float* values,
                                    int lane) {
  const int position = plan.positions()[row];
  const int queries = a.query.data != nullptr ? a.heads : 0;
  if (head < queries) {
    const KeyPlace to{a.queries + (static_cast<int64_t>(row) * a.heads + head) * a.head_dim, kGroupColumns, 0};
    write_head(a, a.query, row, head * a.head_dim * (a.gated != 0 ? 2 : 1), a.query_norm, position, values, to, 0,
               lane);
    return;
  }
  head -= queries;
  const KeyPlace to = key_row(plan, a, row);
  const int64_t first_chunk = static_cast<int64_t>(head) * a.head_dim / 8;
  if (head < a.kv_heads)
    write_head(a, a.key, row, head * a.head_dim, a.key_norm, position, values, to, first_chunk, lane);
  else
    write_value_head(a, row, (head - a.kv_heads) * a.head_dim, to, first_chunk, lane);
}

/// The end of a merge: the division and the output gate.
__device__ inline void write_merged(const AttentionArguments& a, int row, int head, int at, float sum, float value) {
  value = value / sum;
  if (a.gated != 0) {
    const float gate = a.query.get(row, (head * 2 + 1) * a.head_dim + at);
    value = value / (1.0F + __expf(-gate));
  }
  a.output.set(row, static_cast<int64_t>(head) * a.head_dim + at, value);
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
  write_merged(a, row, head, at, sum, value);
}

}  // namespace tensorfold::backend::cuda
