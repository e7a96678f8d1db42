// What one item of attention work is: the keys that its rows see, and where each of them lies.
#pragma once

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/attention.h"
#include "backend/cuda/key_place.cuh"

namespace tensorfold::backend::cuda {

__device__ inline void copy_or_clear(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0) : "memory");
}

/// What a block needs to know of its item.
struct Block {
  AttentionItem item;
  DeviceSequence sequence;
  int first_key = 0;  ///< keys that some row of the block sees: [first_key, end_key)
  int end_key = 0;
};

__device__ inline Block read_block(const PlanView& plan, const AttentionArguments& a, int index) {
  Block block;
  block.item = plan.items(a.kind)[index];
  block.sequence = plan.sequences()[plan.owner()[block.item.first_row]];
  const int first = plan.positions()[block.item.first_row];
  const int last = plan.positions()[block.item.first_row + block.item.rows - 1];
  const int begin = a.window > 0 && first - a.window + 1 > 0 ? first - a.window + 1 : 0;
  const int end = a.bidirectional != 0 ? block.sequence.committed + block.sequence.row_count : last + 1;
  block.first_key = begin > block.item.partition * kPartitionKeys ? begin : block.item.partition * kPartitionKeys;
  const int partition_end = (block.item.partition + 1) * kPartitionKeys;
  block.end_key = end < partition_end ? end : partition_end;
  return block;
}

/// Where the key at `position` lies, null if no row of the block sees it.
__device__ inline KeyPlace find_key(const PlanView& plan, const AttentionArguments& a, const Block& block,
                                    int position) {
  if (position < block.first_key || position >= block.end_key) return {};
  const int depth = position - block.sequence.committed;
  if (depth >= 0 && block.sequence.keep_all == 0) {
    const int row = block.item.path >= 0 ? plan.paths()[block.item.path + depth] : block.sequence.first_row + depth;
    return record_place(a.window_keys, plan.records()[row], a.width);
  }
  const int64_t page = plan.pages()[block.sequence.first_page + position / a.page_tokens];
  return page_place(a.pages, page, position % a.page_tokens, a.page_tokens, a.width);
}

}  // namespace tensorfold::backend::cuda
