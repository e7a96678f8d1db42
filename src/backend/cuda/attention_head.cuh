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

/// `Count` neighbouring values, 4 or 8; `column` a multiple of that. Whole pieces of a tile's row come by one load.
template <int Count>
__device__ inline void get_some(float (&values)[Count], const Activation& from, int row, int column) {
  if (from.bf16 != 0 && from.offset % Count == 0) {
    alignas(16) uint32_t words[Count / 2];
    const auto* at = static_cast<const __nv_bfloat16*>(from.data) + tile_index(row, from.offset + column, from.stride);
    if constexpr (Count == 8)
      *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(at);
    else
      *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(at);
#pragma unroll
    for (int i = 0; i < Count / 2; ++i) {
      values[i * 2] = __uint_as_float(words[i] << 16);
      values[i * 2 + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) values[i] = from.get(row, column + i);
}

/// One warp: norm and rotation of one head's vector of 32 PerLane values, one rounding to bf16 at the end; it becomes
/// the chunks of `to` from `first_chunk`. `values`: 2 kMostHeadDim floats of shared memory of this warp.
template <int PerLane>
__device__ inline void write_head_of(const AttentionArguments& a, const Activation& from, int row, int column,
                                     const float* norm, int position, float* values, const KeyPlace& to,
                                     int64_t first_chunk, int lane) {
  float own[PerLane];
  get_some<PerLane>(own, from, row, column + lane * PerLane);
  auto* turns = reinterpret_cast<float2*>(values + kMostHeadDim);  // sine and cosine of each pair
#pragma unroll 1
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
  // A loop, since in the forward program its code is never near. Rotated values wait where the turns' pairs were read.
  uint16_t* const at = to.chunk(first_chunk + lane * PerLane / 8) + lane * PerLane % 8;
  uint32_t words[PerLane / 2];
#pragma unroll
  for (int i = 0; i < PerLane / 2; ++i) words[i] = 0;
#pragma unroll 1
  for (int i = 0; i < PerLane; ++i) {
    const int index = lane * PerLane + i;
    float value = values[index];
    if (index < 2 * a.frequency_count) {
      const bool is_first = a.interleaved != 0 ? index % 2 == 0 : index < a.frequency_count;
      const int pair = a.interleaved != 0 ? index / 2 : is_first ? index : index - a.frequency_count;
      const float other = values[a.interleaved != 0 ? index ^ 1 : is_first ? index + a.frequency_count : pair];
      const float2 turn = turns[pair];
      value = is_first ? value * turn.y - other * turn.x : value * turn.y + other * turn.x;
    }
    // The words move on by one value; after all, each stands in its place.
#pragma unroll
    for (int w = 0; w < PerLane / 2; ++w)
      words[w] = __funnelshift_r(
          words[w], w + 1 < PerLane / 2 ? words[w + 1] : __bfloat16_as_ushort(__float2bfloat16_rn(value)), 16);
  }
  if constexpr (PerLane == 8)
    *reinterpret_cast<uint4*>(at) = make_uint4(words[0], words[1], words[2], words[3]);
  else
    *reinterpret_cast<uint2*>(at) = make_uint2(words[0], words[1]);
  __syncwarp();
}

/// One warp: a head's values, as they are.
__device__ inline void write_value_head(const AttentionArguments& a, int row, int column, const KeyPlace& to,
                                        int64_t first_chunk, int lane) {
#pragma unroll 1
  for (int chunk = lane; chunk < a.head_dim / 8; chunk += 32) {
    float values[8];
    get_some<8>(values, a.value, row, column + chunk * 8);
    alignas(16) __nv_bfloat162 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(values[i * 2], values[i * 2 + 1]);
    *reinterpret_cast<uint4*>(to.chunk(first_chunk + chunk)) = *reinterpret_cast<const uint4*>(pairs);
  }
}

/// One warp: what one of a row's heads becomes before attention: a query of the workspace, a key or a value of the
/// cache; `head` counts the queries (if there are any), then the keys, then the values.
__device__ inline void prepare_head(const PlanView& plan, const AttentionArguments& a, int row, int head, float* values,
                                    int lane) {
  const int queries = a.query.data != nullptr ? a.heads : 0;
  const bool is_query = head < queries;
  KeyPlace to{a.queries + (static_cast<int64_t>(row) * a.heads + head) * a.head_dim, kGroupColumns, 0};
  int64_t first_chunk = 0;
  if (!is_query) {
    head -= queries;
    to = key_row(plan, a, row);
    first_chunk = static_cast<int64_t>(head) * a.head_dim / 8;
    if (head >= a.kv_heads) {
      write_value_head(a, row, (head - a.kv_heads) * a.head_dim, to, first_chunk, lane);
      return;
    }
  }
  const int position = plan.positions()[row];
  const Activation& from = is_query ? a.query : a.key;
  const float* norm = is_query ? a.query_norm : a.key_norm;
  const int column = head * a.head_dim * (is_query && a.gated != 0 ? 2 : 1);
  if (a.head_dim == 256)
    write_head_of<8>(a, from, row, column, norm, position, values, to, first_chunk, lane);
  else
    write_head_of<4>(a, from, row, column, norm, position, values, to, first_chunk, lane);
}

/// The output gate of value `at` of a (row, head), if there is one.
__device__ inline float merge_gate(const AttentionArguments& a, int row, int head, int at) {
  return a.gated != 0 ? a.query.get(row, (head * 2 + 1) * a.head_dim + at) : 0.0F;
}

/// The end of a merge: the division and the output gate.
__device__ inline void write_merged(const AttentionArguments& a, int row, int head, int at, float gate, float sum,
                                    float value) {
  value = value / sum;
  if (a.gated != 0) value = value / (1.0F + __expf(-gate));
  a.output.set(row, static_cast<int64_t>(head) * a.head_dim + at, value);
}

/// Value `at` of one (row, head): its partial results merged in order, and the output gate. The first partition's
/// numbers and the gate are loaded together: often they are all.
__device__ inline void merge_value(const AttentionArguments& a, const AttentionRow& where, int row, int head, int at) {
  const int64_t first = where.slot - where.first_partition;
  const int64_t first_slot = (first + where.begin) * a.heads + head;
  const bool any = where.begin < where.end;
  const float2 first_part = any ? a.sums[first_slot] : make_float2(-INFINITY, 0.0F);
  const float first_value = any ? a.partials[first_slot * a.head_dim + at] : 0.0F;
  const float gate = merge_gate(a, row, head, at);
  float largest = first_part.x;
#pragma unroll 4
  for (int p = where.begin + 1; p < where.end; ++p) largest = fmaxf(largest, a.sums[(first + p) * a.heads + head].x);
  const float first_share = first_part.x == -INFINITY ? 0.0F : __expf(first_part.x - largest);
  float sum = fmaf(first_part.y, first_share, 0.0F);
  float value = fmaf(first_value, first_share, 0.0F);
#pragma unroll 4
  for (int p = where.begin + 1; p < where.end; ++p) {
    const int64_t slot = (first + p) * a.heads + head;
    const float2 part = a.sums[slot];
    const float share = part.x == -INFINITY ? 0.0F : __expf(part.x - largest);
    sum = fmaf(part.y, share, sum);
    value = fmaf(a.partials[slot * a.head_dim + at], share, value);
  }
  write_merged(a, row, head, at, gate, sum, value);
}

}  // namespace tensorfold::backend::cuda
