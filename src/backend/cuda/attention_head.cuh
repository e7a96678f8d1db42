// One head's vector before attention (norm, rotation, cache row) and one value after it (merge of partial results, gate).
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

/// One warp: norm and rotation of one head's vector, one rounding to bf16 at the end.
__device__ inline void write_head(const AttentionArguments& a, const Activation& from, int row, int column, const float* norm,
                           int position, float* values, uint16_t* to, int lane) {
  const int per_lane = a.head_dim / 32;
  float sum = 0.0F;
  for (int i = 0; i < per_lane; ++i) {
    const int at = lane * per_lane + i;
    const float value = from.get(row, column + at);
    values[at] = value;
    sum = fmaf(value, value, sum);
  }
  if (norm != nullptr) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
    const float scale = rsqrtf(sum / static_cast<float>(a.head_dim) + a.epsilon);
    for (int i = 0; i < per_lane; ++i) {
      const int at = lane * per_lane + i;
      values[at] = values[at] * scale * norm[at];
    }
  }
  __syncwarp();
  for (int i = 0; i < per_lane; ++i) {
    const int at = lane * per_lane + i;
    float value = values[at];
    if (at < 2 * a.frequency_count) {
      const int pair = a.interleaved != 0 ? at / 2 : at % a.frequency_count;
      const int first = a.interleaved != 0 ? pair * 2 : pair;
      const int second = a.interleaved != 0 ? pair * 2 + 1 : pair + a.frequency_count;
      float sine = 0.0F;
      float cosine = 0.0F;
      sincosf(static_cast<float>(position) * a.frequencies[pair], &sine, &cosine);
      value =
          at == first ? values[first] * cosine - values[second] * sine : values[second] * cosine + values[first] * sine;
    }
    to[at] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
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
