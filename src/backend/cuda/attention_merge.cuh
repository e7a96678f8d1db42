// The merge of partial results inside the forward kernel.
//
// Few partitions: a thread a value, as in the kernel of its own. Many: a thread block takes 64 values of a (row, head);
// all its threads bring the partial results to shared memory at once, then 64 threads add them in order. Bytes: 4 a
// value and partition.
#pragma once

#include "backend/cuda/attention_block.cuh"
#include "backend/cuda/attention_head.cuh"
#include "backend/cuda/forward_memory.cuh"

namespace tensorfold::backend::cuda {

constexpr int kDirectPartitions = 24;
constexpr int kMergeColumns = 64;
constexpr int kMergePartitions = 264;  ///< in shared memory at a time: those of 128k tokens and some
constexpr uint32_t kMergeSharesAt = kMergePartitions * kMergeColumns * 4;
constexpr uint32_t kMergeLargestAt = kMergeSharesAt + kMergePartitions * 8;
static_assert(kMergeLargestAt + kConsumerWarps * 4 <= kScratchBytes);

/// The most partitions of a row of the plan; every thread must call it.
__device__ inline int most_partitions(const PlanView& plan, const AttentionArguments& a) {
  int most = 0;
  for (int row = static_cast<int>(threadIdx.x) % 32; row < plan.header().rows; row += 32) {
    const AttentionRow where = plan.attention_rows(a.kind)[row];
    most = max(most, where.end - where.begin);
  }
  return __reduce_max_sync(0xFFFFFFFFU, most);
}

__device__ inline void merge_directly(const PlanView& plan, const AttentionArguments& a) {
  const int team = static_cast<int>(threadIdx.x) / a.head_dim;
  const int teams = kConsumers / a.head_dim;
  if (team >= teams) return;
  const int units = plan.header().rows * a.heads;
  for (int unit = static_cast<int>(blockIdx.x + gridDim.x * static_cast<unsigned>(team)); unit < units;
       unit += static_cast<int>(gridDim.x) * teams) {
    const int row = unit / a.heads;
    merge_value(a, plan.attention_rows(a.kind)[row], row, unit % a.heads, static_cast<int>(threadIdx.x) % a.head_dim);
  }
}

/// The largest m of a (row, head), by all threads.
__device__ inline float largest_of(const float2* sums, int heads, int count) {
  auto* of_warps = reinterpret_cast<float*>(forward_memory() + kMergeLargestAt);
  float largest = -INFINITY;
  for (int p = static_cast<int>(threadIdx.x); p < count; p += kConsumers)
    largest = fmaxf(largest, sums[static_cast<int64_t>(p) * heads].x);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, step));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  consumers_sync();
#pragma unroll
  for (int warp = 0; warp < kConsumerWarps; ++warp) largest = fmaxf(largest, of_warps[warp]);
  return largest;
}

/// Values [column, column + 64) of a (row, head); all threads of the block.
__device__ inline void merge_columns(const PlanView& plan, const AttentionArguments& a, int row, int head, int column) {
  const AttentionRow where = plan.attention_rows(a.kind)[row];
  const int64_t first = (static_cast<int64_t>(where.slot) - where.first_partition + where.begin) * a.heads + head;
  const int count = where.end - where.begin;
  const float2* sums = a.sums + first;
  const float* partials = a.partials + first * a.head_dim + column;
  const auto thread = static_cast<int>(threadIdx.x);
  const uint32_t base = shared_address(forward_memory());
  auto* shares = reinterpret_cast<float2*>(forward_memory() + kMergeSharesAt);
  const float* own = reinterpret_cast<const float*>(forward_memory()) + thread;
  float largest = 0.0F;
  float sum = 0.0F;
  float value = 0.0F;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kMergePartitions) {
    const int end = min(count, begin + kMergePartitions);
    for (int i = thread; i < (end - begin) * (kMergeColumns / 4); i += kConsumers) {
      const int p = i / (kMergeColumns / 4);
      const int piece = i % (kMergeColumns / 4);
      copy_or_clear(base + static_cast<uint32_t>(i * 16),
                    partials + static_cast<int64_t>(begin + p) * a.heads * a.head_dim + piece * 4, true);
    }
    commit_copies();
    if (begin == 0) largest = largest_of(sums, a.heads, count);
    for (int p = thread; p < end - begin; p += kConsumers) {
      const float2 part = sums[static_cast<int64_t>(begin + p) * a.heads];
      shares[p] = make_float2(part.x == -INFINITY ? 0.0F : __expf(part.x - largest), part.y);
    }
    wait_copies<0>();
    consumers_sync();
    if (thread < kMergeColumns) {
#pragma unroll 8
      for (int p = 0; p < end - begin; ++p) {
        const float2 share = shares[p];
        sum = fmaf(share.y, share.x, sum);
        value = fmaf(own[p * kMergeColumns], share.x, value);
      }
    }
    consumers_sync();
  }
  if (thread < kMergeColumns)
    write_merged(a, row, head, column + thread, merge_gate(a, row, head, column + thread), sum, value);
}

inline __device__ __noinline__ void run_merge(int index) {
  const PlanView plan = forward_plan();
  const auto& a = operation_work<AttentionArguments>(index);
  const bool directly = most_partitions(plan, a) <= kDirectPartitions;
  wait_for_phase(index);
  if (directly) {
    merge_directly(plan, a);
    return;
  }
  const int parts = a.head_dim / kMergeColumns;
  const int units = plan.header().rows * a.heads * parts;
#pragma unroll 1
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x))
    merge_columns(plan, a, unit / (a.heads * parts), unit / parts % a.heads, unit % parts * kMergeColumns);
}

}  // namespace tensorfold::backend::cuda
