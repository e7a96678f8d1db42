// Partial attention of few rows inside the forward kernel: a unit is up to 48 (row, head) pairs of one key head against
// one partition of 512 keys, so that a key is read once for all of them. Bytes: 4 head_dim of a key (its key and its
// value), through the ring of weights (attention_stream.cuh).
//
// 16 warps compute. The keys' tiles come first: a warp takes the scores of a tile for 16 of the pairs, keeps them in
// registers and leaves each pair's largest; the running maxima of the order in attention.h follow from all tiles'
// largest, so each warp then weighs its own tile. The values' tiles follow: warp w takes head_dim / 16 of the outputs
// for all pairs. Two warps prepare the next unit meanwhile.
//
// The code is short rather than straight: a unit passes through most of it once, and an instruction that comes from L2
// costs as much as ten from the instruction cache.
#pragma once

#include "backend/cuda/attention_stream.cuh"
#include "backend/cuda/forward_memory.cuh"

namespace tensorfold::backend::cuda {

constexpr int kUnitWarps = 16;
constexpr int kUnitThreads = kUnitWarps * 32;
constexpr int kHelperThreads = kConsumers - kUnitThreads;
static_assert(kHelperThreads == 64);
constexpr int kUnitTiles = kUnitPairs / 16;
constexpr int kPartitionTiles = kPartitionKeys / kTileKeys;

/// A unit, the same for all its threads.
struct UnitWork {
  Block block;
  Tiles tiles;
  int kv_head = 0;
  int pairs = 0;
  int last = 0;  ///< no unit follows on this thread block
  /// Of each pair: its query and its partial result, counted in heads, and its row's position (-1: no such pair).
  int32_t query[kUnitPairs];
  int32_t slot[kUnitPairs];
  int32_t position[kUnitPairs];
};

/// Scratch memory: what the next unit needs before this one has ended is there twice.
struct UnitMemory {
  static constexpr uint32_t queries = 0;                            ///< bf16 [pairs][head_dim], swizzled chunks
  static constexpr uint32_t weights = queries + kUnitPairs * 512;   ///< bf16 [pairs][512], swizzled chunks
  static constexpr uint32_t largest = weights + kUnitPairs * 1024;  ///< fp32 [tiles][pairs], as are sums and decays
  static constexpr uint32_t sums = largest + kPartitionTiles * kUnitPairs * 4;
  static constexpr uint32_t decays = sums + kPartitionTiles * kUnitPairs * 4;
  static constexpr uint32_t places = decays + kPartitionTiles * kUnitPairs * 4;  ///< of keys that are not streamed
  static constexpr uint32_t works = places + 2 * kPartitionKeys * 8;
  static constexpr uint32_t bytes = works + 2 * sizeof(UnitWork);
};
static_assert(UnitMemory::bytes <= kScratchBytes);

__device__ inline UnitWork& unit_work(int which) {
  return reinterpret_cast<UnitWork*>(forward_memory() + UnitMemory::works)[which];
}
__device__ inline PackedPlace* unit_places(int which) {
  return reinterpret_cast<PackedPlace*>(forward_memory() + UnitMemory::places) + which * kPartitionKeys;
}
__device__ inline float* unit_floats(uint32_t at, int tile, int pair) {
  return reinterpret_cast<float*>(forward_memory() + at) + tile * kUnitPairs + pair;
}
__device__ inline void unit_sync() { named_sync<2, kUnitThreads>(); }
__device__ inline void helper_sync() { named_sync<3, kHelperThreads>(); }

/// The stages of the ring as one computing warp sees them. The helpers leave their arrivals to the first warps.
struct KeyRing {
  Ring ring;
  RingPlace<kStages> place;
  __device__ uint32_t wait() const {
    barrier_wait(ring.stage_full(place.at), place.parity);
    return ring.stage(place.at);
  }
  __device__ void release(int warp, int lane) {
    __syncwarp();
    if (lane == 0) barrier_arrive_times(ring.stage_empty(place.at), warp < kConsumerWarps - kUnitWarps ? 2 : 1);
    place.advance();
  }
};

/// Helpers: the description of a unit. Needs the plan only: may come before the phase begins.
__device__ inline void describe_unit(const PlanView& plan, const AttentionArguments& a, const UnitWalk& walk, int which,
                                     int helper) {
  const AttentionUnit unit = walk.unit();
  UnitWork& work = unit_work(which);
  const Block block = read_block(plan, a, unit.item);
  const Tiles tiles = tiles_of(block);
  const int group = a.heads / a.kv_heads;
  const int pairs = block.item.rows * group;
  if (helper == 0) {
    work.block = block;
    work.tiles = tiles;
    work.kv_head = unit.kv_head;
    work.pairs = pairs;
    work.last = walk.is_last() ? 1 : 0;
  }
  if (helper < kUnitPairs) {
    const int row = helper / group;
    const int head = unit.kv_head * group + helper % group;
    const bool exists = helper < pairs;
    work.query[helper] = exists ? (block.item.first_row + row) * a.heads + head : 0;
    work.slot[helper] = (block.item.slot + row * block.item.slot_step) * a.heads + head;
    work.position[helper] = exists ? plan.positions()[block.item.first_row + row] : -1;
  }
#pragma unroll 1
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const StreamedKeys streamed = streamed_keys(a, block, tile, block.sequence.committed);
    const int key = tile * kTileKeys + helper;
    if (helper < streamed.begin || helper >= streamed.end)
      unit_places(which)[key] = PackedPlace::of(find_key(plan, a, block, block.item.partition * kPartitionKeys + key));
  }
}

/// Helpers: the unit's queries, pairs that do not exist as zeros.
template <int HeadDim>
__device__ inline void load_queries(const AttentionArguments& a, const UnitWork& work, int helper) {
  constexpr int chunks = HeadDim / 8;
  const int chunk = helper % chunks;
  uint32_t to = shared_address(forward_memory()) + UnitMemory::queries + helper / chunks * HeadDim * 2;
  const int pairs = (work.pairs + 15) / 16 * 16;
#pragma unroll 1
  for (int pair = helper / chunks; pair < pairs; pair += kHelperThreads / chunks) {
    copy_or_clear(to + static_cast<uint32_t>((chunk ^ (pair % 8)) * 16),
                  a.queries + static_cast<int64_t>(work.query[pair]) * HeadDim + chunk * 8, pair < work.pairs);
    to += kHelperThreads / chunks * HeadDim * 2;
  }
  commit_copies();
  wait_copies<0>();
}

/// Helpers: m and l of each pair, from all tiles.
__device__ inline void write_sums(const AttentionArguments& a, const UnitWork& work, int helper) {
  if (helper >= work.pairs) return;
  float largest = -INFINITY;
  float sum = 0.0F;
#pragma unroll 1
  for (int tile = work.tiles.begin; tile < work.tiles.end; ++tile) {
    largest = fmaxf(largest, *unit_floats(UnitMemory::largest, tile, helper));
    sum = fmaf(sum, *unit_floats(UnitMemory::decays, tile, helper), *unit_floats(UnitMemory::sums, tile, helper));
  }
  a.sums[work.slot[helper]] = make_float2(largest, sum);
}

/// Keys (`half` 0) or values of a stage that did not come by the ring: window rows, this plan's rows; zeros for values
/// that no row sees. (Unseen scores are replaced, whatever the keys.)
template <int HeadDim>
__device__ inline void fill_tile(const AttentionArguments& a, const PackedPlace* places, const StreamedKeys& streamed,
                                 int kv_head, int half, uint32_t stage) {
  constexpr int chunks = HeadDim / 8;
  const int chunk = static_cast<int>(threadIdx.x) % chunks;
  const int64_t from_chunk = (half * a.kv_heads + kv_head) * chunks + chunk;
#pragma unroll
  for (int step = 0; step < kTileKeys * chunks / kUnitThreads; ++step) {
    const int key = static_cast<int>(threadIdx.x) / chunks + step * (kUnitThreads / chunks);
    if (key >= streamed.begin && key < streamed.end) continue;
    const KeyPlace from = places[key].place(a.page_tokens);
    uint4 values{};
    if (from.at != nullptr) {
      values = *reinterpret_cast<const uint4*>(from.chunk(from_chunk));
      if (half == 0)  // the values follow soon
        asm volatile("prefetch.global.L1 [%0];" ::"l"(from.chunk(from_chunk + a.kv_heads * chunks)));
    } else if (half == 0) {
      continue;
    }
    store_chunk(stage, key, chunk, values);
  }
  // The next bytes in this stage are the copy engine's.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  unit_sync();
}

/// Scores of 16 pairs and the 64 keys of a stage, a chain over the head's values each: s[n] of keys 8n... (Chunks are
/// swizzled: the bits that differ between the steps are disjoint from those that differ between lanes.)
template <int HeadDim>
__device__ inline void score_keys(float (&s)[8][4], uint32_t queries, uint32_t stage, int lane) {
  uint32_t query_row = queries + static_cast<uint32_t>((lane % 16) * HeadDim * 2);
  uint32_t query_chunk = static_cast<uint32_t>(((lane / 16) ^ (lane % 8)) * 16);
  uint32_t key_row = stage + static_cast<uint32_t>((lane % 8) * 128);
  uint32_t key_chunk = static_cast<uint32_t>(((lane / 8) ^ (lane % 8)) * 16);
  const uint32_t zero = threadIdx.y;
#pragma unroll 1
  for (int j = 0; j < HeadDim / 32; ++j) {  // two steps
    uint32_t q[2][4];
    load_matrices(q[0], query_row + query_chunk);
    load_matrices(q[1], query_row + (query_chunk ^ 32U));
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
      uint32_t b[4][4];
#pragma unroll
      for (int n = 0; n < 4; ++n) load_matrices(b[n], key_row + key_chunk + static_cast<uint32_t>((half + n) * 1024));
      // All loads before the first step: without this the assembler takes turns, load and step, with four registers.
#pragma unroll
      for (int n = 0; n < 4; ++n) q[0][0] ^= b[n][0] & zero;
#pragma unroll
      for (int step = 0; step < 2; ++step)
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_step(s[half + n], q[step], b[n][step * 2], b[n][step * 2 + 1]);
    }
    query_chunk ^= 64U;
    key_chunk ^= 64U;
    if (j % 2 == 1) {
      query_row += 128;
      key_row += kTileGroupBytes;
    }
  }
}

/// This lane's sixteen scores of pair lane / 4 + 8 half of its tile: scaled, and -inf where the pair's row does not
/// see.
__device__ inline void read_scores(float (&t)[16], const float (&s)[8][4], int half, const AttentionArguments& a,
                                   const UnitWork& work, int pair, int tile, int lane) {
  const int position = work.position[pair];
  const int end = a.bidirectional != 0 ? work.block.sequence.committed + work.block.sequence.row_count : position + 1;
  const int key_at = work.block.item.partition * kPartitionKeys + tile * kTileKeys + (lane % 4) * 2;
  const int first_seen = a.window > 0 ? position - a.window + 1 - key_at : -kTileKeys;
  const int end_seen = end - key_at;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int key = i / 2 * 8 + i % 2;
    const float score = (half == 0 ? s[i / 2][i % 2] : s[i / 2][i % 2 + 2]) * a.scale;
    t[i] = key >= first_seen && key < end_seen ? score : -INFINITY;
  }
}

/// Each pair's largest score of a tile.
__device__ inline void find_largest(const float (&s)[8][4], const AttentionArguments& a, const UnitWork& work, int tile,
                                    int first_pair, int lane) {
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const int pair = first_pair + lane / 4 + half * 8;
    float t[16];
    read_scores(t, s, half, a, work, pair, tile, lane);
    float largest = t[0];
#pragma unroll
    for (int i = 1; i < 16; ++i) largest = fmaxf(largest, t[i]);
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
    if (lane % 4 == 0) *unit_floats(UnitMemory::largest, tile, pair) = largest;
  }
}

/// Weights of this lane's two pairs, their sums and decays.
__device__ inline void weigh_scores(const float (&s)[8][4], const AttentionArguments& a, const UnitWork& work, int tile,
                                    int first_pair, int lane) {
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const int pair = first_pair + lane / 4 + half * 8;
    float before = -INFINITY;
#pragma unroll 1
    for (int t = work.tiles.begin; t < tile; ++t) before = fmaxf(before, *unit_floats(UnitMemory::largest, t, pair));
    const float next = fmaxf(before, *unit_floats(UnitMemory::largest, tile, pair));
    const float keep = before == -INFINITY ? 1.0F : __expf(before - next);
    float t[16];
    read_scores(t, s, half, a, work, pair, tile, lane);
    uint8_t* const row = forward_memory() + UnitMemory::weights + pair * 1024 + tile * 128 + (lane % 4) * 4;
    const int swizzle = pair % 8 * 16;
    float sum = 0.0F;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float weight[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        weight[i] = t[n * 2 + i] == -INFINITY ? 0.0F : __expf(t[n * 2 + i] - next);
        sum += weight[i];
      }
      *reinterpret_cast<__nv_bfloat162*>(row + (n * 16 ^ swizzle)) = __floats2bfloat162_rn(weight[0], weight[1]);
    }
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
    if (lane % 4 == 0) {
      *unit_floats(UnitMemory::sums, tile, pair) = sum;
      *unit_floats(UnitMemory::decays, tile, pair) = keep;
    }
  }
}

/// All tiles of keys: weights, sums and decays of all pairs. (A call of its own, as are those below: what the loops of
/// one part keep in registers would leave too few to another.)
template <int HeadDim>
inline __device__ __noinline__ RingPlace<kStages> weigh_unit(int index, int which, RingPlace<kStages> place) {
  const auto& a = operation_work<AttentionArguments>(index);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  KeyRing ring{Ring{shared_address(forward_memory())}, place};
  const UnitWork& work = unit_work(which);
  // Up to 32 pairs: all tiles at a time, two warps each. More: four tiles; each scheduler (warp % 4) gets one warp of
  // each.
  const int at_once = work.pairs <= 32 ? kPartitionTiles : kPartitionTiles / 2;
  const int own = at_once == kPartitionTiles ? warp % 8 : warp / 4;
  const int first_pair = (at_once == kPartitionTiles ? warp / 8 : (warp + warp / 4) % 4) * 16;
#pragma unroll 1
  for (int begin = 0; begin < kPartitionTiles; begin += at_once) {
    const int end = min(work.tiles.end, begin + at_once);
    float s[8][4] = {};
    bool works = false;
#pragma unroll 1
    for (int tile = max(work.tiles.begin, begin); tile < end; ++tile) {
      const uint32_t stage = ring.wait();
      const StreamedKeys streamed = streamed_keys(a, work.block, tile, work.block.sequence.committed);
      if (!streamed.all())
        fill_tile<HeadDim>(a, unit_places(which) + tile * kTileKeys, streamed, work.kv_head, 0, stage);
      if (tile == begin + own && first_pair < work.pairs) {
        works = true;
        score_keys<HeadDim>(
            s, shared_address(forward_memory()) + UnitMemory::queries + static_cast<uint32_t>(first_pair * HeadDim * 2),
            stage, lane);
      }
      ring.release(warp, lane);
    }
    if (works) find_largest(s, a, work, begin + own, first_pair, lane);
    unit_sync();
    if (works) weigh_scores(s, a, work, begin + own, first_pair, lane);
  }
  return ring.place;
}

/// The values of a stage as a warp multiplies them: of each step of 16 keys, tiles of 8 outputs.
template <int HeadDim>
__device__ inline void load_values(uint32_t (&b)[4][HeadDim / 64], uint32_t at) {
  if constexpr (HeadDim == 256) {
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) load_matrices_transposed(b[step], at + step * 2048);
  } else {
#pragma unroll
    for (uint32_t two = 0; two < 2; ++two) {
      uint32_t both[4];
      load_matrices_transposed(both, at + two * 4096);
      b[two * 2][0] = both[0];
      b[two * 2][1] = both[1];
      b[two * 2 + 1][0] = both[2];
      b[two * 2 + 1][1] = both[3];
    }
  }
}

/// Outputs of 16 pairs from `first_pair` before a tile is added.
template <int Columns>
__device__ inline void decay_outputs(float (&out)[Columns][4], int tile, int first_pair, int lane) {
  const float low = *unit_floats(UnitMemory::decays, tile, first_pair + lane / 4);
  const float high = *unit_floats(UnitMemory::decays, tile, first_pair + lane / 4 + 8);
#pragma unroll
  for (int n = 0; n < Columns; ++n) {
    out[n][0] *= low;
    out[n][1] *= low;
    out[n][2] *= high;
    out[n][3] *= high;
  }
}

/// All tiles of values: O = O decay + P V, a chain over a tile's keys; the partial results to the workspace.
template <int HeadDim>
inline __device__ __noinline__ RingPlace<kStages> sum_unit(int index, int which, RingPlace<kStages> place) {
  constexpr int columns = HeadDim / 128;  // tiles of 8 outputs
  const auto& a = operation_work<AttentionArguments>(index);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  KeyRing ring{Ring{shared_address(forward_memory())}, place};
  const UnitWork& work = unit_work(which);
  uint32_t weights = shared_address(forward_memory()) + UnitMemory::weights + static_cast<uint32_t>((lane % 16) * 1024);
  const auto weight_chunk = static_cast<uint32_t>(((lane / 16) ^ (lane % 8)) * 16);
  // This lane's row of the values' matrices, the first of the stage.
  const int value_chunk = HeadDim == 256 ? warp * 2 + lane / 16 : warp;
  const int value_row = HeadDim == 256 ? lane % 16 : lane;
  const auto values_at = static_cast<uint32_t>(value_chunk / 8) * kTileGroupBytes +
                         static_cast<uint32_t>(value_row * 128 + ((value_chunk % 8) ^ (lane % 8)) * 16);
  float out[kUnitTiles][columns][4] = {};
  weights += static_cast<uint32_t>(work.tiles.begin * 128);
#pragma unroll 1
  for (int tile = work.tiles.begin; tile < work.tiles.end; ++tile) {
    uint32_t p[4][4];  // weights of 16 pairs, of the first ones before the values are there
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) load_matrices(p[step], weights + (weight_chunk ^ (step * 32)));
    decay_outputs(out[0], tile, 0, lane);
    const uint32_t stage = ring.wait();
    const StreamedKeys streamed = streamed_keys(a, work.block, tile, work.block.sequence.committed);
    if (!streamed.all()) fill_tile<HeadDim>(a, unit_places(which) + tile * kTileKeys, streamed, work.kv_head, 1, stage);
    uint32_t b[4][2 * columns];
    load_values<HeadDim>(b, stage + values_at);
#pragma unroll
    for (int m = 0; m < kUnitTiles; ++m) {
      if (m * 16 >= work.pairs) break;
      if (m > 0) {
#pragma unroll
        for (uint32_t step = 0; step < 4; ++step)
          load_matrices(p[step], weights + static_cast<uint32_t>(m * 16 * 1024) + (weight_chunk ^ (step * 32)));
        decay_outputs(out[m], tile, m * 16, lane);
      }
#pragma unroll
      for (uint32_t step = 0; step < 4; ++step)
#pragma unroll
        for (int n = 0; n < columns; ++n) mma_step(out[m][n], p[step], b[step][n * 2], b[step][n * 2 + 1]);
    }
    weights += 128;
    ring.release(warp, lane);
  }
#pragma unroll
  for (int m = 0; m < kUnitTiles; ++m) {
    if (m * 16 >= work.pairs) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pair = m * 16 + lane / 4 + half * 8;
      if (pair >= work.pairs) continue;
      float* to = a.partials + static_cast<int64_t>(work.slot[pair]) * HeadDim + warp * (HeadDim / 16) + (lane % 4) * 2;
#pragma unroll
      for (int n = 0; n < columns; ++n)
        *reinterpret_cast<float2*>(to + n * 8) = make_float2(out[m][n][half * 2], out[m][n][half * 2 + 1]);
    }
  }
  return ring.place;
}

/// The two warps beside: descriptions and queries of the next unit while this one's values are summed.
template <int HeadDim>
inline __device__ __noinline__ RingPlace<kStages> help_units(int index, RingPlace<kStages> place) {
  const auto& a = operation_work<AttentionArguments>(index);
  const PlanView plan = forward_plan();
  const int helper = static_cast<int>(threadIdx.x) - kUnitThreads;
  UnitWalk walk(plan, a);
  int which = 0;
  if (!walk.ended()) describe_unit(plan, a, walk, which, helper);
  wait_for_phase(index);
#pragma unroll 1
  while (!walk.ended()) {
    const UnitWork& work = unit_work(which);
    helper_sync();
    load_queries<HeadDim>(a, work, helper);
    consumers_sync();  // the unit begins
    for (int stage = 2 * (work.tiles.end - work.tiles.begin); stage > 0; --stage) place.advance();
    walk.next();
    which ^= 1;
    if (!walk.ended()) describe_unit(plan, a, walk, which, helper);
    consumers_sync();  // its queries have been read, its weights are there
    write_sums(a, work, helper);
  }
  return place;
}

/// This thread block's units.
template <int HeadDim>
__device__ inline RingPlace<kStages> attend_units(int index, RingPlace<kStages> place) {
  if (threadIdx.x >= kUnitThreads) return help_units<HeadDim>(index, place);
  const bool none = UnitWalk(forward_plan(), operation_work<AttentionArguments>(index)).ended();
  wait_for_phase(index);
  if (none) return place;
#pragma unroll 1
  for (int which = 0;; which ^= 1) {
    consumers_sync();
    place = weigh_unit<HeadDim>(index, which, place);
    consumers_sync();
    place = sum_unit<HeadDim>(index, which, place);
    if (unit_work(which).last != 0) break;
  }
  return place;
}

}  // namespace tensorfold::backend::cuda
