// Keys and values of committed tokens on their way through the forward kernel's ring: one thread copies tile after
// tile, in the order in which attention_rows.cuh takes them. They lie in memory when the kernel begins, so the copies
// run ahead of the phases as those of the weights do. A stage holds the keys or the values of one tile of 64 tokens and
// one key head: [head_dim / 64][64 tokens][64 values], 32 KB of 256 values.
#pragma once

#include "backend/cuda/attention_block.cuh"
#include "backend/cuda/forward_product.cuh"

namespace tensorfold::backend::cuda {

constexpr uint32_t kTileGroupBytes = kTileKeys * kGroupColumns * 2;
static_assert(kStageBytes >= kTileGroupBytes * 4, "a stage holds a tile of 256 values");

/// What a thread block does at a time: the pairs of an item at a key head.
struct AttentionUnit {
  int item = 0;
  int kv_head = 0;
};

/// This thread block's units, in order; the copying thread and the computing ones walk through the same.
class UnitWalk {
 public:
  __device__ UnitWalk(const PlanView& plan, const AttentionArguments& a)
      : kv_heads_(a.kv_heads),
        units_(plan.header().attention[a.kind].items * a.kv_heads),
        at_(static_cast<int>(blockIdx.x)) {}
  __device__ bool ended() const { return at_ >= units_; }
  __device__ void next() { at_ += static_cast<int>(gridDim.x); }
  __device__ bool is_last() const { return at_ + static_cast<int>(gridDim.x) >= units_; }
  __device__ AttentionUnit unit() const { return {at_ / kv_heads_, at_ % kv_heads_}; }

 private:
  int kv_heads_;
  int units_;
  int at_;
};

/// Tiles of a partition that some row of the block sees: [begin, end).
struct Tiles {
  int begin;
  int end;
};
__device__ inline Tiles tiles_of(const Block& block) {
  const int partition_at = block.item.partition * kPartitionKeys;
  return {(block.first_key - partition_at) / kTileKeys, (block.end_key - partition_at + kTileKeys - 1) / kTileKeys};
}

/// Keys of a tile that come through the ring: [begin, end) of 0..64.
struct StreamedKeys {
  int begin;
  int end;
  __device__ bool all() const { return begin == 0 && end == kTileKeys; }
};
__device__ inline StreamedKeys streamed_keys(const AttentionArguments& a, const Block& block, int tile) {
  const int tile_at = block.item.partition * kPartitionKeys + tile * kTileKeys;
  const int begin = max(block.first_key - tile_at, 0);
  const int end = min(min(block.end_key, block.sequence.committed) - tile_at, kTileKeys);
  if (!pages_are_swizzled(a.page_tokens) || end <= begin) return {0, 0};
  return {begin, end};
}

/// One tile of keys or values into a stage. `first_group`: the head's first group of 64 columns in a token's row.
__device__ inline void stream_tile(const PlanView& plan, const AttentionArguments& a, const Block& block, int tile,
                                   int first_group, uint32_t stage, uint32_t barrier) {
  const StreamedKeys keys = streamed_keys(a, block, tile);
  const int groups = a.head_dim / kGroupColumns;
  const int tile_at = block.item.partition * kPartitionKeys + tile * kTileKeys;
  barrier_expect(barrier, static_cast<uint32_t>((keys.end - keys.begin) * a.head_dim * 2));
  for (int key = keys.begin; key < keys.end;) {
    const int position = tile_at + key;
    const int place = position % a.page_tokens;
    const int count = min(keys.end - key, a.page_tokens - place);
    const int64_t page = plan.pages()[block.sequence.first_page + position / a.page_tokens];
    const uint16_t* from =
        a.pages + page * a.page_tokens * a.width + (static_cast<int64_t>(first_group) * a.page_tokens + place) * 64;
    if (count == kTileKeys && a.page_tokens == kTileKeys) {
      bulk_copy(stage, from, static_cast<uint32_t>(groups) * kTileGroupBytes, barrier);
    } else {
      for (int g = 0; g < groups; ++g)
        bulk_copy(stage + static_cast<uint32_t>(g) * kTileGroupBytes + static_cast<uint32_t>(key * 128),
                  from + static_cast<int64_t>(g) * a.page_tokens * 64, static_cast<uint32_t>(count * 128), barrier);
    }
    key += count;
  }
}

/// One thread: all units of an attention operation, each the keys of its tiles, then the values.
inline __device__ __noinline__ RingPlace<kStages> stream_keys(const int32_t* plan_at,
                                                              const AttentionArguments& arguments, Ring ring,
                                                              RingPlace<kStages> place) {
  AttentionArguments a;  // what is needed, in registers: the barriers' memory clobbers concern what pointers name
  a.heads = arguments.heads;
  a.kv_heads = arguments.kv_heads;
  a.head_dim = arguments.head_dim;
  a.window = arguments.window;
  a.bidirectional = arguments.bidirectional;
  a.kind = arguments.kind;
  a.pages = arguments.pages;
  a.width = arguments.width;
  a.page_tokens = arguments.page_tokens;
  const PlanView plan{plan_at};
  const int groups = a.head_dim / kGroupColumns;
#pragma unroll 1
  for (UnitWalk walk(plan, a); !walk.ended(); walk.next()) {
    const AttentionUnit unit = walk.unit();
    const Block block = read_block(plan, a, unit.item);
    const Tiles tiles = tiles_of(block);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int first_group = (half * a.kv_heads + unit.kv_head) * groups;
#pragma unroll 1
      for (int tile = tiles.begin; tile < tiles.end; ++tile) {
        barrier_wait(ring.stage_empty(place.at), place.parity ^ 1U);
        stream_tile(plan, a, block, tile, first_group, ring.stage(place.at), ring.stage_full(place.at));
        place.advance();
      }
    }
  }
  return place;
}

}  // namespace tensorfold::backend::cuda
