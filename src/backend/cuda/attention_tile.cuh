// A tile of keys or values in shared memory, and the copies in bulk that bring it: 64 tokens of one key head,
// [head_dim / 64][64 tokens][64 values], the rows of 128 bytes swizzled as in the pages (key_place.cuh); 32 KB of 256
// values.
#pragma once

#include "backend/cuda/attention_block.cuh"

namespace tensorfold::backend::cuda {

constexpr uint32_t kTileGroupBytes = kTileKeys * kGroupColumns * 2;

/// Where chunk `chunk` (8 values) of a row of the tile lies.
__device__ inline uint32_t chunk_address(uint32_t tile, int row, int chunk) {
  return tile + static_cast<uint32_t>(chunk / 8) * kTileGroupBytes +
         static_cast<uint32_t>(row * 128 + ((chunk % 8) ^ (row % 8)) * 16);
}
__device__ inline void store_chunk(uint32_t tile, int row, int chunk, const uint4& values) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(chunk_address(tile, row, chunk)), "r"(values.x),
               "r"(values.y), "r"(values.z), "r"(values.w)
               : "memory");
}

/// Tiles of a partition that some row of the block sees: [begin, end).
struct Tiles {
  int begin;
  int end;
};
__device__ inline Tiles tiles_of(const Block& block) {
  const int partition_at = block.item.partition * kPartitionKeys;
  return {(block.first_key - partition_at) / kTileKeys, (block.end_key - partition_at + kTileKeys - 1) / kTileKeys};
}

/// Keys of a tile that are copied in bulk: [begin, end) of 0..64.
struct StreamedKeys {
  int begin;
  int end;
  __device__ bool all() const { return begin == 0 && end == kTileKeys; }
};
/// `paged_end`: keys from this position on do not lie in pages yet.
__device__ inline StreamedKeys streamed_keys(const AttentionArguments& a, const Block& block, int tile, int paged_end) {
  const int tile_at = block.item.partition * kPartitionKeys + tile * kTileKeys;
  const int begin = max(block.first_key - tile_at, 0);
  const int end = min(min(block.end_key, paged_end) - tile_at, kTileKeys);
  if (!pages_are_swizzled(a.page_tokens) || end <= begin) return {0, 0};
  return {begin, end};
}

/// One thread: these keys (or values) of a tile, completing on `barrier`. `first_group`: the head's first group of 64
/// columns in a token's row.
__device__ inline void stream_tile(const PlanView& plan, const AttentionArguments& a, const Block& block, int tile,
                                   const StreamedKeys& keys, int first_group, uint32_t stage, uint32_t barrier) {
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

}  // namespace tensorfold::backend::cuda
