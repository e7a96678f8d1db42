// Partial attention of many rows: a thread block takes up to 128 (row, head) pairs of one key head against one
// partition of 512 keys. Order of sums: attention.h. Bytes: 1,024 head_dim / 256 of a key for all its pairs, from pages
// to shared memory in tiles of 64 keys; 4 a pair and value of partial results.
//
// One warp brings the tiles into a ring of four stages, keys and values by turns. Two warpgroups compute, 64 pairs
// each: scores, weights and outputs of a warpgroup stay in its registers, and while one weighs, the other multiplies.
#include <mutex>

#include "backend/cuda/attention_block.cuh"
#include "backend/cuda/attention_tile.cuh"
#include "backend/cuda/attention_warpgroup.cuh"
#include "backend/cuda/launch.h"

namespace tensorfold::backend::cuda {
namespace {

constexpr int kGroupPairs = 64;  // of a warpgroup
constexpr int kComputingWarps = 8;
static_assert(kAttentionItems == 2 * kGroupPairs);
constexpr int kThreads = (kComputingWarps + 4) * 32;  // a warpgroup copies, so that its registers can go to the others
constexpr uint32_t kStages = 4;

template <int HeadDim>
struct Memory {
  static constexpr uint32_t tile = HeadDim / kGroupColumns * kTileGroupBytes;
  static constexpr uint32_t queries = 0;
  static constexpr uint32_t stages = queries + 2 * tile;
  static constexpr uint32_t barriers = stages + kStages * tile;
  static constexpr uint32_t bytes = barriers + kStages * 16 + 1024;  // and what aligns the first tile
};

struct Stage {
  uint32_t at = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    at = (at + 1) % kStages;
    if (at == 0) parity ^= 1;
  }
};

template <int HeadDim>
struct TileRing {
  uint32_t memory;
  __device__ uint32_t stage(const Stage& s) const {
    return memory + Memory<HeadDim>::stages + s.at * Memory<HeadDim>::tile;
  }
  __device__ uint32_t full(const Stage& s) const { return memory + Memory<HeadDim>::barriers + s.at * 16; }
  __device__ uint32_t empty(const Stage& s) const { return full(s) + 8; }
};

/// Keys that no copy in bulk brings, by the lanes of one warp: window rows, pages that are not swizzled, zeros.
template <int HeadDim>
__device__ inline void fill_tile(const PlanView& plan, const AttentionArguments& a, const Block& block, int tile,
                                 const StreamedKeys& streamed, int first_group, uint32_t stage, int lane) {
  constexpr int chunks = HeadDim / 8;
#pragma unroll 4
  for (int i = lane; i < kTileKeys * chunks; i += 32) {
    const int key = i / chunks;
    const int chunk = i % chunks;
    if (key >= streamed.begin && key < streamed.end) continue;
    const KeyPlace from = find_key(plan, a, block, block.item.partition * kPartitionKeys + tile * kTileKeys + key);
    uint4 values{};
    if (from.at != nullptr) values = *reinterpret_cast<const uint4*>(from.chunk(first_group * 8 + chunk));
    store_chunk(stage, key, chunk, values);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// The copying warp.
template <int HeadDim>
__device__ inline void bring_tiles(const PlanView& plan, const AttentionArguments& a, const Block& block, int kv_head,
                                   const TileRing<HeadDim>& ring, int lane) {
  constexpr int groups = HeadDim / kGroupColumns;
  const Tiles tiles = tiles_of(block);
  const int paged_end = block.sequence.keep_all != 0 ? block.end_key : block.sequence.committed;
  asm volatile("fence.proxy.async;" ::: "memory");  // this plan's keys were written by ordinary stores
  Stage stage;
#pragma unroll 1
  for (int tile = tiles.begin; tile < tiles.end; ++tile)
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int first_group = (half * a.kv_heads + kv_head) * groups;
      const StreamedKeys streamed = streamed_keys(a, block, tile, paged_end);
      barrier_wait(ring.empty(stage), stage.parity ^ 1U);
      if (!streamed.all()) fill_tile<HeadDim>(plan, a, block, tile, streamed, first_group, ring.stage(stage), lane);
      __syncwarp();
      if (lane == 0) stream_tile(plan, a, block, tile, streamed, first_group, ring.stage(stage), ring.full(stage));
      stage.advance();
    }
}

/// Running maximum and sum of one pair; four threads share it.
struct Running {
  float largest = -INFINITY;
  float sum = 0.0F;
  int first_visible = 0;  ///< positions that the pair's row sees: [first_visible, end_visible)
  int end_visible = 0;
};

/// This thread's scores of one pair (values 2 half, + 1 of each four) become its weights; returns the decay.
__device__ inline float weigh(Running& run, float (&s)[32], int half, float scale, int tile_at, int lane) {
  float largest = -INFINITY;
  const bool all = run.first_visible <= tile_at && run.end_visible >= tile_at + kTileKeys;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float& score = s[i / 2 * 4 + half * 2 + i % 2];
    score = score * scale;
    if (!all) {
      const int key = tile_at + i / 2 * 8 + (lane % 4) * 2 + i % 2;
      if (key < run.first_visible || key >= run.end_visible) score = -INFINITY;
    }
    largest = fmaxf(largest, score);
  }
  largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
  const float next = fmaxf(run.largest, largest);
  const float keep = run.largest == -INFINITY ? 1.0F : __expf(run.largest - next);
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float& score = s[i / 2 * 4 + half * 2 + i % 2];
    score = score == -INFINITY ? 0.0F : __expf(score - next);
    sum += score;
  }
  sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
  sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
  run.sum = fmaf(run.sum, keep, sum);
  run.largest = next;
  return keep;
}

__device__ inline uint32_t pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Queries of 64 pairs into a tile, absent ones as zeros; by one warpgroup, whose barrier follows.
template <int HeadDim>
__device__ inline void load_queries(const AttentionArguments& a, const Block& block, int kv_head, int first_pair,
                                    int pairs, uint32_t to, int thread) {
  constexpr int chunks = HeadDim / 8;
  const int group = a.heads / a.kv_heads;
  const int chunk = thread % chunks;
#pragma unroll 1
  for (int pair = thread / chunks; pair < kGroupPairs; pair += 128 / chunks) {
    const bool exists = pair < pairs;
    const int row = block.item.first_row + (first_pair + pair) / group;
    const int head = kv_head * group + (first_pair + pair) % group;
    const uint16_t* from = a.queries + (static_cast<int64_t>(row) * a.heads + head) * HeadDim + chunk * 8;
    copy_or_clear(chunk_address(to, pair, chunk), exists ? from : a.queries, exists);
  }
  commit_copies();
  wait_copies<0>();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// One warpgroup: 64 pairs of the item from `first_pair`.
template <int HeadDim>
__device__ inline void attend(const PlanView& plan, const AttentionArguments& a, const Block& block, int kv_head,
                              int which, const TileRing<HeadDim>& ring) {
  constexpr int parts = HeadDim / 128;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int group = a.heads / a.kv_heads;
  const int first_pair = which * kGroupPairs;
  const int pairs = block.item.rows * group - first_pair;
  const uint32_t queries = ring.memory + static_cast<uint32_t>(which) * Memory<HeadDim>::tile;
  const Tiles tiles = tiles_of(block);
  Stage stage;
  const auto release = [&] {
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty(stage));
    stage.advance();
  };
  if (pairs <= 0) {
    for (int i = 2 * (tiles.end - tiles.begin); i > 0; --i) {
      barrier_wait(ring.full(stage), stage.parity);
      release();
    }
    return;
  }
  load_queries<HeadDim>(a, block, kv_head, first_pair, pairs, queries, thread);
  if (which == 0)
    asm volatile("bar.sync 1, 128;" ::: "memory");
  else
    asm volatile("bar.sync 2, 128;" ::: "memory");
  Running run[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = warp * 16 + lane / 4 + half * 8;
    if (pair >= pairs) continue;
    const int position = plan.positions()[block.item.first_row + (first_pair + pair) / group];
    run[half].first_visible = a.window > 0 && position - a.window + 1 > 0 ? position - a.window + 1 : 0;
    run[half].end_visible = a.bidirectional != 0 ? block.sequence.committed + block.sequence.row_count : position + 1;
  }
  float out[parts][64] = {};
#pragma unroll 1
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    float s[32];
    barrier_wait(ring.full(stage), stage.parity);
    warpgroup_fence();
#pragma unroll
    for (uint32_t step = 0; step < HeadDim / 16; ++step) {
      const uint32_t at = step / 4 * kTileGroupBytes + step % 4 * 32;
      warpgroup_step(s, swizzled_descriptor(queries + at, 16), swizzled_descriptor(ring.stage(stage) + at, 16),
                     step == 0 ? 0 : 1);
    }
    warpgroup_commit();
    warpgroup_wait<0>(s);
    release();
    const int tile_at = block.item.partition * kPartitionKeys + tile * kTileKeys;
    const float low = weigh(run[0], s, 0, a.scale, tile_at, lane);
    const float high = weigh(run[1], s, 1, a.scale, tile_at, lane);
    uint32_t weights[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[step][i] = pack_pair(s[step * 8 + i * 2], s[step * 8 + i * 2 + 1]);
    if (__any_sync(0xFFFFFFFFU, low != 1.0F || high != 1.0F)) {
#pragma unroll
      for (int part = 0; part < parts; ++part)
#pragma unroll
        for (int i = 0; i < 64; ++i) out[part][i] *= i % 4 < 2 ? low : high;
    }
    barrier_wait(ring.full(stage), stage.parity);
    warpgroup_fence();
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step)
#pragma unroll
      for (uint32_t part = 0; part < parts; ++part)
        warpgroup_step(
            out[part], weights[step],
            swizzled_descriptor(ring.stage(stage) + step * 2048 + part * 2 * kTileGroupBytes, kTileGroupBytes));
    warpgroup_commit();
#pragma unroll
    for (int part = 0; part < parts; ++part) warpgroup_wait<0>(out[part]);
    release();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = warp * 16 + lane / 4 + half * 8;
    if (pair >= pairs) continue;
    const int row = (first_pair + pair) / group;
    const int64_t slot = (block.item.slot + static_cast<int64_t>(row) * block.item.slot_step) * a.heads +
                         kv_head * group + (first_pair + pair) % group;
    if (lane % 4 == 0) a.sums[slot] = make_float2(run[half].largest, run[half].sum);
    float* to = a.partials + slot * HeadDim + (lane % 4) * 2;
#pragma unroll
    for (int part = 0; part < parts; ++part)
#pragma unroll
      for (int n = 0; n < 16; ++n)
        *reinterpret_cast<float2*>(to + part * 128 + n * 8) =
            make_float2(out[part][n * 4 + half * 2], out[part][n * 4 + half * 2 + 1]);
  }
}

template <int HeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    partials_kernel(PlanView plan, int first_item, const __grid_constant__ AttentionArguments a) {
  extern __shared__ __align__(1024) uint8_t memory[];
  allow_next_kernel();
  const TileRing<HeadDim> ring{(shared_address(memory) + 1023U) & ~1023U};
  const int index = first_item + static_cast<int>(blockIdx.x);
  if (index >= plan.header().attention[a.kind].items) {
    wait_for_previous_kernels();
    return;
  }
  if (threadIdx.x == 0) {
    for (Stage stage; stage.parity == 0; stage.advance()) {
      barrier_init(ring.full(stage), 1);
      barrier_init(ring.empty(stage), kComputingWarps);
    }
    barrier_init_fence();
  }
  const Block block = read_block(plan, a, index);
  __syncthreads();
  wait_for_previous_kernels();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto kv_head = static_cast<int>(blockIdx.y);
  if (warp >= kComputingWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == kComputingWarps)
      bring_tiles<HeadDim>(plan, a, block, kv_head, ring, static_cast<int>(threadIdx.x) % 32);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    attend<HeadDim>(plan, a, block, kv_head, warp / 4, ring);
  }
}

template <int HeadDim>
void launch_as(const int32_t* plan, int first_item, int items, const AttentionArguments& arguments,
               cudaStream_t stream) {
  constexpr size_t shared = Memory<HeadDim>::bytes;
  static std::once_flag once;
  std::call_once(once, [] { allow_shared_memory(partials_kernel<HeadDim>, shared); });
  launch(partials_kernel<HeadDim>, dim3(static_cast<unsigned>(items), static_cast<unsigned>(arguments.kv_heads)),
         dim3(kThreads), shared, stream, PlanView{plan}, first_item, arguments);
}

}  // namespace

bool attention_supports(int head_dim) { return head_dim == 128 || head_dim == 256; }

void launch_attention_partials(const int32_t* plan, int first_item, int items, const AttentionArguments& arguments,
                               cudaStream_t stream) {
  if (arguments.head_dim == 256)
    launch_as<256>(plan, first_item, items, arguments, stream);
  else
    launch_as<128>(plan, first_item, items, arguments, stream);
}

}  // namespace tensorfold::backend::cuda
