// Partial attention of few rows inside the forward kernel: a unit is up to 48 (row, head) pairs of one key head against
// one partition of 512 keys, so that a key is read once for all of them. Bytes: 4 head_dim of a key (its key and its
// value), through the ring of weights (attention_stream.cuh).
//
// 16 warps. The keys' tiles come first: of each half of the partition, warp w takes the scores of tile w / 4 for 16 of
// the pairs, keeps them in registers and leaves each pair's largest; the running maxima of the order in attention.h
// follow from all tiles' largest, so each warp then weighs its own tile. The values' tiles follow: warp w takes
// head_dim / 16 of the outputs for all pairs.
#pragma once

#include "backend/cuda/attention_stream.cuh"
#include "backend/cuda/forward_memory.cuh"

namespace tensorfold::backend::cuda {

constexpr int kUnitThreads = 512;
constexpr int kPartitionTiles = kPartitionKeys / kTileKeys;

/// A unit, the same for all its threads.
struct UnitWork {
  Block block;
  Tiles tiles;
  int kv_head = 0;
  int first_pair = 0;
  int pairs = 0;
  int group = 1;
};

/// Scratch memory of a unit.
struct UnitMemory {
  static constexpr uint32_t queries = 0;                            ///< bf16 [pairs][head_dim], swizzled chunks
  static constexpr uint32_t weights = queries + kUnitPairs * 512;   ///< bf16 [pairs][512], swizzled chunks
  static constexpr uint32_t largest = weights + kUnitPairs * 1024;  ///< fp32 [tiles][pairs]
  static constexpr uint32_t sums = largest + kPartitionTiles * kUnitPairs * 4;
  static constexpr uint32_t decays = sums + kPartitionTiles * kUnitPairs * 4;
  static constexpr uint32_t places = decays + kPartitionTiles * kUnitPairs * 4;  ///< of keys that are not streamed
  static constexpr uint32_t work = places + kPartitionKeys * 8;
  static constexpr uint32_t bytes = work + sizeof(UnitWork);
};
static_assert(UnitMemory::bytes <= kScratchBytes);

__device__ inline UnitWork& unit_work() { return *reinterpret_cast<UnitWork*>(forward_memory() + UnitMemory::work); }
__device__ inline float* unit_floats(uint32_t at, int tile, int pair) {
  return reinterpret_cast<float*>(forward_memory() + at) + tile * kUnitPairs + pair;
}
__device__ inline void unit_sync() { named_sync<2, kUnitThreads>(); }

/// The stages of the ring as one warp of the attention sees them.
struct KeyRing {
  Ring ring;
  RingPlace<kStages> place;
  __device__ uint32_t wait() const {
    barrier_wait(ring.stage_full(place.at), place.parity);
    return ring.stage(place.at);
  }
  __device__ void release(int lane) {
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.stage_empty(place.at));
    place.advance();
  }
};

/// Needs the plan only: may come before the phase begins. Ends without a barrier.
__device__ inline UnitWork begin_unit(const PlanView& plan, const AttentionArguments& a, const AttentionUnit& unit) {
  UnitWork work;
  work.block = read_block(plan, a, unit.item);
  work.tiles = tiles_of(work.block);
  work.kv_head = unit.kv_head;
  work.first_pair = unit.first_pair;
  work.group = a.heads / a.kv_heads;
  work.pairs = min(work.block.item.rows * work.group - unit.first_pair, kUnitPairs);
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) unit_work() = work;
  const int tile = thread / kTileKeys;
  if (tile >= work.tiles.begin && tile < work.tiles.end) {
    const StreamedKeys streamed = streamed_keys(a, work.block, tile);
    if (thread % kTileKeys < streamed.begin || thread % kTileKeys >= streamed.end)
      reinterpret_cast<PackedPlace*>(forward_memory() + UnitMemory::places)[thread] =
          PackedPlace::of(find_key(plan, a, work.block, work.block.item.partition * kPartitionKeys + thread));
  }
  return work;
}

/// The unit's queries, pairs that do not exist as zeros.
template <int HeadDim>
__device__ inline void load_queries(const AttentionArguments& a, const UnitWork& work) {
  const uint32_t base = shared_address(forward_memory()) + UnitMemory::queries;
  const int pairs = (work.pairs + 15) / 16 * 16;
  for (int i = static_cast<int>(threadIdx.x); i < pairs * (HeadDim / 8); i += kUnitThreads) {
    const int pair = i / (HeadDim / 8);
    const int chunk = i % (HeadDim / 8);
    const bool exists = pair < work.pairs;
    const int row = work.block.item.first_row + (work.first_pair + pair) / work.group;
    const int head = work.kv_head * work.group + (work.first_pair + pair) % work.group;
    const uint16_t* from = a.queries + (static_cast<int64_t>(row) * a.heads + head) * HeadDim + chunk * 8;
    copy_or_clear(base + static_cast<uint32_t>(pair * HeadDim * 2 + (chunk ^ (pair % 8)) * 16),
                  exists ? from : a.queries, exists);
  }
  commit_copies();
  wait_copies<0>();
}

/// Keys of a stage that did not come by the ring: window rows, this plan's rows, and zeros where no row sees one.
template <int HeadDim>
__device__ inline void fill_tile(const AttentionArguments& a, int tile, const StreamedKeys& streamed, int first_chunk,
                                 uint32_t stage) {
  const auto* places = reinterpret_cast<const PackedPlace*>(forward_memory() + UnitMemory::places) + tile * kTileKeys;
  constexpr int chunks = HeadDim / 8;
#pragma unroll
  for (int step = 0; step < kTileKeys * chunks / kUnitThreads; ++step) {
    const int i = step * kUnitThreads + static_cast<int>(threadIdx.x);
    const int key = i / chunks;
    const int chunk = i % chunks;
    if (key >= streamed.begin && key < streamed.end) continue;
    const KeyPlace from = places[key].place(a.page_tokens);
    uint4 values{};
    if (from.at != nullptr) values = *reinterpret_cast<const uint4*>(from.chunk(first_chunk + chunk));
    const uint32_t to = stage + static_cast<uint32_t>(chunk / 8) * kTileGroupBytes +
                        static_cast<uint32_t>(key * 128 + ((chunk % 8) ^ (key % 8)) * 16);
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(values.x), "r"(values.y), "r"(values.z),
                 "r"(values.w)
                 : "memory");
  }
  proxy_fence();  // the next bytes in this stage are the copy engine's
  unit_sync();
}

/// Scores of 16 pairs and the 64 keys of a stage, a chain over the head's values each: s[n] of keys 8n... (Chunks are
/// swizzled: the bits that differ between the steps are disjoint from those that differ between lanes.)
template <int HeadDim>
__device__ inline void score_keys(float (&s)[8][4], uint32_t queries, uint32_t stage, int lane) {
  const uint32_t query_row = queries + static_cast<uint32_t>((lane % 16) * HeadDim * 2);
  const auto query_chunk = static_cast<uint32_t>(((lane / 16) ^ (lane % 8)) * 16);
  const uint32_t key_row = stage + static_cast<uint32_t>((lane % 8) * 128);
  const auto key_chunk = static_cast<uint32_t>(((lane / 8) ^ (lane % 8)) * 16);
#pragma unroll
  for (uint32_t j = 0; j < HeadDim / 32; ++j) {  // two steps
    uint32_t q[2][4];
#pragma unroll
    for (uint32_t step = 0; step < 2; ++step)
      load_matrices(q[step], query_row + (query_chunk ^ (j % 2 * 64 + step * 32)) + j / 2 * 128);
    const uint32_t keys = key_row + (key_chunk ^ (j % 2 * 64)) + j / 2 * kTileGroupBytes;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      uint32_t b[4][4];
#pragma unroll
      for (uint32_t n = 0; n < 4; ++n) load_matrices(b[n], keys + (half * 4 + n) * 1024);
#pragma unroll
      for (uint32_t step = 0; step < 2; ++step)
#pragma unroll
        for (uint32_t n = 0; n < 4; ++n) mma_step(s[half * 4 + n], q[step], b[n][step * 2], b[n][step * 2 + 1]);
    }
  }
}

/// Scales and masks the scores of this lane's two pairs; leaves the tile's largest of each.
__device__ inline void mask_scores(const AttentionArguments& a, const UnitWork& work, float (&s)[8][4],
                                   const int (&positions)[2], int tile, int first_pair, int lane) {
  const int tile_at = work.block.item.partition * kPartitionKeys + tile * kTileKeys + (lane % 4) * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int position = positions[half];
    const int first = a.window > 0 && position - a.window + 1 > 0 ? position - a.window + 1 : 0;
    const int end = a.bidirectional != 0 ? work.block.sequence.committed + work.block.sequence.row_count : position + 1;
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = tile_at + n * 8 + i;
        float& score = s[n][half * 2 + i];
        score = key >= first && key < end ? score * a.scale : -INFINITY;
        largest = fmaxf(largest, score);
      }
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
    if (lane % 4 == 0) *unit_floats(UnitMemory::largest, tile, first_pair + lane / 4 + half * 8) = largest;
  }
}

/// Weights of this lane's two pairs, their sums and decays.
__device__ inline void weigh_scores(int begin_tile, const float (&s)[8][4], int tile, int first_pair, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = first_pair + lane / 4 + half * 8;
    float before = -INFINITY;
    for (int t = begin_tile; t < tile; ++t) before = fmaxf(before, *unit_floats(UnitMemory::largest, t, pair));
    const float next = fmaxf(before, *unit_floats(UnitMemory::largest, tile, pair));
    const float keep = before == -INFINITY ? 1.0F : __expf(before - next);
    float sum = 0.0F;
    uint8_t* const row = forward_memory() + UnitMemory::weights + pair * 1024 + tile * 128 + (lane % 4) * 4;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float weight[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float score = s[n][half * 2 + i];
        weight[i] = score == -INFINITY ? 0.0F : __expf(score - next);
        sum += weight[i];
      }
      *reinterpret_cast<__nv_bfloat162*>(row + (n ^ (pair % 8)) * 16) = __floats2bfloat162_rn(weight[0], weight[1]);
    }
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
    if (lane % 4 == 0) {
      *unit_floats(UnitMemory::sums, tile, pair) = sum;
      *unit_floats(UnitMemory::decays, tile, pair) = keep;
    }
  }
}

/// All tiles of keys: weights, sums and decays of all pairs.
template <int HeadDim>
__device__ inline void weigh_unit(const PlanView& plan, const AttentionArguments& a, KeyRing& ring, int warp,
                                  int lane) {
  const UnitWork& work = unit_work();
  const int first_chunk = work.kv_head * (HeadDim / 8);
  // Each scheduler (warp % 4) gets one warp of a tile, also where only the first 16 pairs exist.
  const int first_pair = (warp + warp / 4) % 4 * 16;
  const uint32_t queries =
      shared_address(forward_memory()) + UnitMemory::queries + static_cast<uint32_t>(first_pair * HeadDim * 2);
  int positions[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = first_pair + lane / 4 + half * 8;
    const int row = work.block.item.first_row + (work.first_pair + pair) / work.group;
    positions[half] = pair < work.pairs ? plan.positions()[row] : -1;
  }
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const int begin = max(work.tiles.begin, half * 4);
    const int end = min(work.tiles.end, half * 4 + 4);
    if (begin >= end) continue;
    const int own = half * 4 + warp / 4;
    const bool works = own >= begin && own < end && first_pair < work.pairs;
    float s[8][4] = {};
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
      const uint32_t stage = ring.wait();
      const StreamedKeys streamed = streamed_keys(a, work.block, tile);
      if (!streamed.all()) fill_tile<HeadDim>(a, tile, streamed, first_chunk, stage);
      if (works && tile == own) score_keys<HeadDim>(s, queries, stage, lane);
      ring.release(lane);
    }
    if (works) mask_scores(a, work, s, positions, own, first_pair, lane);
    unit_sync();
    if (works) weigh_scores(work.tiles.begin, s, own, first_pair, lane);
  }
  unit_sync();
}

/// All tiles of values: O = O decay + P V, a chain over a tile's keys; the partial results to the workspace.
template <int HeadDim>
__device__ inline void sum_unit(const AttentionArguments& a, KeyRing& ring, int warp, int lane) {
  const UnitWork& work = unit_work();
  constexpr int columns = HeadDim / 128;  // tiles of 8 outputs
  const int first_chunk = (a.kv_heads + work.kv_head) * (HeadDim / 8);
  const int pair_tiles = (work.pairs + 15) / 16;
  const uint32_t weights =
      shared_address(forward_memory()) + UnitMemory::weights + static_cast<uint32_t>((lane % 16) * 1024);
  const auto weight_chunk = static_cast<uint32_t>(((lane / 16) ^ (lane % 8)) * 16);
  // This lane's row of the values' matrices, the first of the stage.
  const int value_chunk = HeadDim == 256 ? warp * 2 + lane / 16 : warp;
  const int value_row = HeadDim == 256 ? lane % 16 : lane;
  const auto values_at = static_cast<uint32_t>(value_chunk / 8) * kTileGroupBytes +
                         static_cast<uint32_t>(value_row * 128 + ((value_chunk % 8) ^ (lane % 8)) * 16);
  float out[kUnitTiles][columns][4] = {};
#pragma unroll 1
  for (int tile = work.tiles.begin; tile < work.tiles.end; ++tile) {
    const uint32_t stage = ring.wait();
    const StreamedKeys streamed = streamed_keys(a, work.block, tile);
    if (!streamed.all()) fill_tile<HeadDim>(a, tile, streamed, first_chunk, stage);
    uint32_t b[4][2 * columns];  // of each step of 16 keys
    if constexpr (HeadDim == 256) {
#pragma unroll
      for (uint32_t step = 0; step < 4; ++step) load_matrices_transposed(b[step], stage + values_at + step * 2048);
    } else {
#pragma unroll
      for (uint32_t two = 0; two < 2; ++two) {
        uint32_t both[4];
        load_matrices_transposed(both, stage + values_at + two * 4096);
        b[two * 2][0] = both[0];
        b[two * 2][1] = both[1];
        b[two * 2 + 1][0] = both[2];
        b[two * 2 + 1][1] = both[3];
      }
    }
#pragma unroll
    for (int m = 0; m < kUnitTiles; ++m) {
      if (m >= pair_tiles) break;
      const float low = *unit_floats(UnitMemory::decays, tile, m * 16 + lane / 4);
      const float high = *unit_floats(UnitMemory::decays, tile, m * 16 + lane / 4 + 8);
#pragma unroll
      for (int n = 0; n < columns; ++n) {
        out[m][n][0] *= low;
        out[m][n][1] *= low;
        out[m][n][2] *= high;
        out[m][n][3] *= high;
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        uint32_t p[4];
        load_matrices(p, weights + static_cast<uint32_t>(m * 16 * 1024 + tile * 128) +
                             (weight_chunk ^ static_cast<uint32_t>(step * 32)));
#pragma unroll
        for (int n = 0; n < columns; ++n) mma_step(out[m][n], p, b[step][n * 2], b[step][n * 2 + 1]);
      }
    }
    ring.release(lane);
  }
  const auto slot_of = [&](int pair) {
    pair += work.first_pair;
    const int64_t slot = work.block.item.slot + static_cast<int64_t>(pair / work.group) * work.block.item.slot_step;
    return slot * a.heads + work.kv_head * work.group + pair % work.group;
  };
#pragma unroll
  for (int m = 0; m < kUnitTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pair = m * 16 + lane / 4 + half * 8;
      if (pair >= work.pairs) continue;
      float* to = a.partials + slot_of(pair) * HeadDim + warp * (HeadDim / 16) + (lane % 4) * 2;
#pragma unroll
      for (int n = 0; n < columns; ++n)
        *reinterpret_cast<float2*>(to + n * 8) = make_float2(out[m][n][half * 2], out[m][n][half * 2 + 1]);
    }
  const auto pair = static_cast<int>(threadIdx.x);
  if (pair < work.pairs) {
    float largest = -INFINITY;
    float sum = 0.0F;
    for (int tile = work.tiles.begin; tile < work.tiles.end; ++tile) {
      largest = fmaxf(largest, *unit_floats(UnitMemory::largest, tile, pair));
      sum = fmaf(sum, *unit_floats(UnitMemory::decays, tile, pair), *unit_floats(UnitMemory::sums, tile, pair));
    }
    a.sums[slot_of(pair)] = make_float2(largest, sum);
  }
}

/// The two warps that compute nothing here take part in the ring's counts.
__device__ inline void skip_units(const PlanView& plan, const AttentionArguments& a, KeyRing& ring, int lane) {
#pragma unroll 1
  for (UnitWalk walk(plan, a); !walk.ended(); walk.next()) {
    const Tiles tiles = tiles_of(read_block(plan, a, walk.unit().item));
#pragma unroll 1
    for (int stage = 2 * (tiles.end - tiles.begin); stage > 0; --stage) {
      ring.wait();
      ring.release(lane);
    }
  }
}

/// This thread block's units.
template <int HeadDim>
__device__ inline RingPlace<kStages> attend_units(const AttentionArguments& a, int index, RingPlace<kStages> place) {
  const PlanView plan = forward_plan();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  KeyRing ring{Ring{shared_address(forward_memory())}, place};
  if (warp * 32 >= kUnitThreads) {
    wait_for_phase(index);
    skip_units(plan, a, ring, lane);
    return ring.place;
  }
  UnitWalk walk(plan, a);
  UnitWork work;
  if (!walk.ended()) work = begin_unit(plan, a, walk.unit());
  wait_for_phase(index);
#pragma unroll 1
  while (!walk.ended()) {
    load_queries<HeadDim>(a, work);
    unit_sync();
    weigh_unit<HeadDim>(plan, a, ring, warp, lane);
    sum_unit<HeadDim>(a, ring, warp, lane);
    walk.next();
    if (walk.ended()) break;
    unit_sync();  // all have read this unit's memory
    work = begin_unit(plan, a, walk.unit());
  }
  return ring.place;
}

}  // namespace tensorfold::backend::cuda
