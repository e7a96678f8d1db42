// Where a token's keys and values lie.
//
// A page holds its tokens' rows of `width` values in groups of 64 columns: [width / 64][page_tokens][64], so that the
// keys (or values) of a head are contiguous and one bulk copy brings 64 tokens of them. In a row of 128 bytes, the
// chunk of 8 values c stands at c ^ (place % 8): the matrices that ldmatrix and wgmma read then touch every bank once
// (it is the 128-byte swizzle of the matrix descriptors). Pages whose size is no multiple of 8 are not swizzled and not
// copied in bulk. Window records are plain rows [width].
#pragma once

#include <cstdint>

namespace tensorfold::backend::cuda {

constexpr int kGroupColumns = 64;

__host__ __device__ inline bool pages_are_swizzled(int page_tokens) { return page_tokens % 8 == 0; }

/// One token's row; null: there is none.
struct KeyPlace {
  uint16_t* at = nullptr;
  int32_t group_stride = kGroupColumns;  ///< values from a group of columns to the next
  int32_t swizzle = 0;
  /// Values [8 chunk, 8 chunk + 8).
  __device__ uint16_t* chunk(int64_t chunk) const {
    return at + (chunk / 8) * group_stride + ((static_cast<int32_t>(chunk % 8) ^ swizzle) * 8);
  }
};

__device__ inline KeyPlace record_place(uint16_t* records, int64_t record, int64_t width) {
  return {records + record * width, kGroupColumns, 0};
}
__device__ inline KeyPlace page_place(uint16_t* pages, int64_t page, int place, int page_tokens, int64_t width) {
  return {pages + page * page_tokens * width + static_cast<int64_t>(place) * kGroupColumns, page_tokens * kGroupColumns,
          pages_are_swizzled(page_tokens) ? place % 8 : 0};
}

/// A KeyPlace in 8 bytes: rows begin at multiples of 16 bytes.
struct PackedPlace {
  uint64_t bits = 0;
  __device__ static PackedPlace of(const KeyPlace& place) {
    return {reinterpret_cast<uint64_t>(place.at) | static_cast<uint64_t>(place.swizzle) |
            (place.group_stride != kGroupColumns ? 8U : 0U)};
  }
  __device__ KeyPlace place(int page_tokens) const {
    return {reinterpret_cast<uint16_t*>(bits & ~uint64_t{15}),
            (bits & 8U) != 0 ? page_tokens * kGroupColumns : kGroupColumns, static_cast<int32_t>(bits & 7U)};
  }
};

}  // namespace tensorfold::backend::cuda
