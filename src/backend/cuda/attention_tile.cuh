// Partial attention of a block: up to 64 (row, head) pairs of one key head against one partition of 512 keys.
//
// Eight warps share a tile of 64 keys: warp w computes the scores of keys 8w.. and the outputs of the head's values
// D/8 w.. for all pairs. The scores pass through shared memory; four threads a pair keep its running m and l.
#pragma once

#include "backend/cuda/attention_block.cuh"
#include "backend/cuda/matrix_unit.cuh"

namespace tensorfold::backend::cuda {

constexpr int kAttentionThreads = 256;
constexpr int kScoreStride = kTileKeys + 4;   // floats
constexpr int kWeightStride = kTileKeys + 8;  // bf16

template <int HeadDim, int ItemTiles>
struct Layout {
  static constexpr int row_bytes = (HeadDim + 8) * 2;  // rows start 16 bytes apart modulo 128: no bank conflicts
  static constexpr int queries = 0;
  static constexpr int keys = queries + ItemTiles * 16 * row_bytes;
  static constexpr int values = keys + kTileKeys * row_bytes;
  static constexpr int scores = values + kTileKeys * row_bytes;
  static constexpr int weights = scores + ItemTiles * 16 * kScoreStride * 4;
  static constexpr int decays = weights + ItemTiles * 16 * kWeightStride * 2;
  static constexpr int places = decays + ItemTiles * 16 * 4;
  static constexpr int bytes = places + kPartitionKeys * 8;
};

template <int HeadDim>
__device__ inline void load_tile(uint32_t to, const PackedPlace* places, int page_tokens, int64_t first_chunk) {
  constexpr int chunks = HeadDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * chunks; i += kAttentionThreads) {
    const int key = i / chunks;
    const int chunk = i % chunks;
    const KeyPlace from = places[key].place(page_tokens);
    copy_or_clear(to + static_cast<uint32_t>(key * (HeadDim + 8) * 2 + chunk * 16),
                  from.at != nullptr ? static_cast<const void*>(from.chunk(first_chunk + chunk))
                                     : static_cast<const void*>(places),
                  from.at != nullptr);
  }
}

/// Scores of this warp's 8 keys for all pairs, scaled, to shared memory.
template <int HeadDim, int ItemTiles>
__device__ inline void score_tile(uint32_t queries, uint32_t keys, float* scores, float scale, int tiles, int warp,
                                  int lane) {
  using L = Layout<HeadDim, ItemTiles>;
  uint32_t b[HeadDim / 32][4];
#pragma unroll
  for (int j = 0; j < HeadDim / 32; ++j)
    load_matrices(b[j], keys + static_cast<uint32_t>((warp * 8 + lane % 8) * L::row_bytes + j * 64 + (lane / 8) * 16));
#pragma unroll
  for (int tile = 0; tile < ItemTiles; ++tile) {
    if (tile >= tiles) break;
    float sum[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
    for (int j = 0; j < HeadDim / 32; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t q[4];
        load_matrices(q, queries + static_cast<uint32_t>((tile * 16 + lane % 16) * L::row_bytes + j * 64 + half * 32 +
                                                         (lane / 16) * 16));
        mma_step(sum, q, b[j][half * 2], b[j][half * 2 + 1]);
      }
    float* at = scores + (tile * 16 + lane / 4) * kScoreStride + warp * 8 + (lane % 4) * 2;
    at[0] = sum[0] * scale;
    at[1] = sum[1] * scale;
    at[8 * kScoreStride] = sum[2] * scale;
    at[8 * kScoreStride + 1] = sum[3] * scale;
  }
}

/// Running maximum and sum of one pair; four threads share it, each with 16 of the tile's keys.
struct Running {
  float largest = -INFINITY;
  float sum = 0.0F;
  int first_visible = 0;  ///< positions that the pair's row sees: [first_visible, end_visible)
  int end_visible = 0;
};

__device__ inline void weigh_tile(Running& run, const float* scores, __nv_bfloat16* weights, float* decay, int tile_at,
                                  int part) {
  float s[16];
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int key = (i / 4) * 16 + ((i / 2) % 2) * 8 + part * 2 + i % 2;
    const int position = tile_at + key;
    s[i] = position >= run.first_visible && position < run.end_visible ? scores[key] : -INFINITY;
    largest = fmaxf(largest, s[i]);
  }
  largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
  const float next = fmaxf(run.largest, largest);
  const float keep = run.largest == -INFINITY ? 1.0F : __expf(run.largest - next);
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int key = (i / 4) * 16 + ((i / 2) % 2) * 8 + part * 2 + i % 2;
    const float weight = s[i] == -INFINITY ? 0.0F : __expf(s[i] - next);
    sum += weight;
    weights[key] = __float2bfloat16_rn(weight);
  }
  sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
  sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
  run.sum = fmaf(run.sum, keep, sum);
  run.largest = next;
  if (part == 0) *decay = keep;
}

/// Outputs of this warp's values: O = O decay + P V.
template <int HeadDim, int ItemTiles>
__device__ inline void output_tile(float (&out)[ItemTiles][HeadDim / 64][4], uint32_t weights, uint32_t values,
                                   const float* decays, int tiles, int warp, int lane) {
  using L = Layout<HeadDim, ItemTiles>;
#pragma unroll
  for (int tile = 0; tile < ItemTiles; ++tile) {
    if (tile >= tiles) break;
    const float low = decays[tile * 16 + lane / 4];
    const float high = decays[tile * 16 + lane / 4 + 8];
#pragma unroll
    for (int n = 0; n < HeadDim / 64; ++n) {
      out[tile][n][0] *= low;
      out[tile][n][1] *= low;
      out[tile][n][2] *= high;
      out[tile][n][3] *= high;
    }
  }
#pragma unroll
  for (int step = 0; step < kTileKeys / 16; ++step) {
    uint32_t b[HeadDim / 128][4];
#pragma unroll
    for (int n = 0; n < HeadDim / 128; ++n)
      load_matrices_transposed(b[n],
                               values + static_cast<uint32_t>((step * 16 + lane % 16) * L::row_bytes +
                                                              (warp * (HeadDim / 8) + n * 16 + (lane / 16) * 8) * 2));
#pragma unroll
    for (int tile = 0; tile < ItemTiles; ++tile) {
      if (tile >= tiles) break;
      uint32_t p[4];
      load_matrices(p, weights + static_cast<uint32_t>(
                                     ((tile * 16 + lane % 16) * kWeightStride + step * 16 + (lane / 16) * 8) * 2));
#pragma unroll
      for (int n = 0; n < HeadDim / 64; ++n)
        mma_step(out[tile][n], p, b[n / 2][(n % 2) * 2], b[n / 2][(n % 2) * 2 + 1]);
    }
  }
}

/// One unit of work: pairs [first_pair, first_pair + 16 ItemTiles) of an item and a key head, by 256 threads; `sync` is
/// their barrier. `wait` comes before the first byte that earlier operations wrote.
template <int HeadDim, int ItemTiles, typename Wait, typename Sync>
__device__ inline void attend_unit(const PlanView& plan, const AttentionArguments& a, int item, int kv_head,
                                   int first_pair, uint8_t* memory, Wait&& wait, Sync&& sync) {
  using L = Layout<HeadDim, ItemTiles>;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int group = a.heads / a.kv_heads;
  const Block block = read_block(plan, a, item);
  const int pairs = min(block.item.rows * group - first_pair, ItemTiles * 16);
  const int tiles = (pairs + 15) / 16;
  auto* places = reinterpret_cast<PackedPlace*>(memory + L::places);
  auto* scores = reinterpret_cast<float*>(memory + L::scores);
  auto* weights = reinterpret_cast<__nv_bfloat16*>(memory + L::weights);
  auto* decays = reinterpret_cast<float*>(memory + L::decays);
  const uint32_t base = shared_address(memory);
  const int partition_at = block.item.partition * kPartitionKeys;
  for (int i = thread; i < kPartitionKeys; i += kAttentionThreads)
    places[i] = PackedPlace::of(find_key(plan, a, block, partition_at + i));
  wait();
  for (int i = thread; i < tiles * 16 * (HeadDim / 8); i += kAttentionThreads) {
    const int pair = i / (HeadDim / 8);
    const int chunk = i % (HeadDim / 8);
    const int row = block.item.first_row + (first_pair + pair) / group;
    const int head = kv_head * group + (first_pair + pair) % group;
    const uint16_t* from = a.queries + (static_cast<int64_t>(row) * a.heads + head) * HeadDim + chunk * 8;
    copy_or_clear(base + static_cast<uint32_t>(L::queries + pair * L::row_bytes + chunk * 16),
                  pair < pairs ? from : a.queries, pair < pairs);
  }
  sync();
  const int64_t key_chunk = static_cast<int64_t>(kv_head) * HeadDim / 8;
  const int64_t value_chunk = static_cast<int64_t>(a.kv_heads + kv_head) * HeadDim / 8;
  const int first_tile = (block.first_key - partition_at) / kTileKeys;
  const int end_tile = (block.end_key - partition_at + kTileKeys - 1) / kTileKeys;
  load_tile<HeadDim>(base + L::keys, places + first_tile * kTileKeys, a.page_tokens, key_chunk);
  commit_copies();
  load_tile<HeadDim>(base + L::values, places + first_tile * kTileKeys, a.page_tokens, value_chunk);
  commit_copies();

  Running run;
  const int pair = thread / 4;
  if (pair < pairs) {
    const int position = plan.positions()[block.item.first_row + (first_pair + pair) / group];
    run.first_visible = a.window > 0 && position - a.window + 1 > 0 ? position - a.window + 1 : 0;
    run.end_visible = a.bidirectional != 0 ? block.sequence.committed + block.sequence.row_count : position + 1;
  }
  float out[ItemTiles][HeadDim / 64][4] = {};
  for (int tile = first_tile; tile < end_tile; ++tile) {
    wait_copies<1>();
    sync();
    score_tile<HeadDim, ItemTiles>(base + L::queries, base + L::keys, scores, a.scale, tiles, warp, lane);
    sync();
    if (tile + 1 < end_tile)
      load_tile<HeadDim>(base + L::keys, places + (tile + 1) * kTileKeys, a.page_tokens, key_chunk);
    commit_copies();
    if (pair < ItemTiles * 16)
      weigh_tile(run, scores + pair * kScoreStride, weights + pair * kWeightStride, decays + pair,
                 partition_at + tile * kTileKeys, thread % 4);
    wait_copies<1>();
    sync();
    output_tile<HeadDim, ItemTiles>(out, base + L::weights, base + L::values, decays, tiles, warp, lane);
    sync();
    if (tile + 1 < end_tile)
      load_tile<HeadDim>(base + L::values, places + (tile + 1) * kTileKeys, a.page_tokens, value_chunk);
    commit_copies();
  }

  const auto slot_of = [&](int which) {
    which += first_pair;
    const int64_t slot = block.item.slot + static_cast<int64_t>(which / group) * block.item.slot_step;
    return slot * a.heads + kv_head * group + which % group;
  };
  if (pair < pairs && thread % 4 == 0) a.sums[slot_of(pair)] = make_float2(run.largest, run.sum);
#pragma unroll
  for (int tile = 0; tile < ItemTiles; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int which = tile * 16 + lane / 4 + half * 8;
      if (which >= pairs) continue;
      float* to = a.partials + slot_of(which) * HeadDim + warp * (HeadDim / 8) + (lane % 4) * 2;
#pragma unroll
      for (int n = 0; n < HeadDim / 64; ++n)
        *reinterpret_cast<float2*>(to + n * 8) = make_float2(out[tile][n][half * 2], out[tile][n][half * 2 + 1]);
    }
}

}  // namespace tensorfold::backend::cuda
