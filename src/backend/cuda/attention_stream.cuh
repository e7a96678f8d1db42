// Keys and values of committed tokens on their way through the forward kernel's ring: one thread copies tile after
// tile, in the order in which attention_rows.cuh takes them. They lie in memory when the kernel begins, so the copies
// run ahead of the phases as those of the weights do. A stage holds the keys or the values of one tile of 64 tokens and
// one key head: [head_dim / 64][64 tokens][64 values], 32 KB of 256 values.
#pragma once

#include "backend/cuda/attention_tile.cuh"
#include "backend/cuda/forward_product.cuh"

namespace tensorfold::backend::cuda {

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
        stream_tile(plan, a, block, tile, streamed_keys(a, block, tile, block.sequence.committed), first_group,
                    ring.stage(place.at), ring.stage_full(place.at));
        place.advance();
      }
    }
  }
  return place;
}

}  // namespace tensorfold::backend::cuda
