#include "backend/cuda/checkpoint_values.cuh"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/matrix_unit.cuh"
#include "backend/cuda/pack.h"

namespace tensorfold::backend::cuda {
namespace {

/// The row of `source` that stands in row `tile_row` of `tile`, or -1.
__device__ int source_row(const PackSource& source, const PackedWeights& layout, int tile, int tile_row) {
  int output = tile * kTileOutputs + tile_row;
  if (layout.paired != 0) {
    const int half = layout.outputs / 2;
    const int within = tile * 8 + tile_row % 8;
    if (within >= half) return -1;
    output = within + (tile_row < 8 ? 0 : half);
  }
  const int row = output - source.first_output;
  return row >= 0 && row < source.rows ? row : -1;
}

/// Where group `group` of tile `tile` lies, in groups of one tile.
__device__ int64_t group_index(const PackedWeights& layout, int tile, int group) {
  const int64_t block = tile / layout.block_tiles;
  return (block * layout.groups + group) * layout.block_tiles + tile % layout.block_tiles;
}

/// One thread: the fragments of one lane in one group of one tile; two tile rows, lane / 4 and lane / 4 + 8.
__global__ void pack_affine4_kernel(PackSource source, uint8_t* data, PackedWeights layout, int32_t* scale_overflow) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t tiles = layout.tiles;
  if (index >= tiles * layout.groups * 32) return;
  const int lane = static_cast<int>(index % 32);
  const int group = static_cast<int>((index / 32) % layout.groups);
  const int tile = static_cast<int>(index / 32 / layout.groups);
  uint8_t* base = data + group_index(layout, tile, group) * group_bytes(WeightFormat::affine4);
  auto* words = reinterpret_cast<uint32_t*>(base + lane * 16);
  auto* pairs = reinterpret_cast<uint32_t*>(base + 512);
  for (int high = 0; high < 2; ++high) {
    const int row = source_row(source, layout, tile, lane / 4 + high * 8);
    if (row < 0) continue;
    const uint32_t* codes = source.codes + static_cast<int64_t>(row) * source.inputs * source.bits / 32;
    for (int step = 0; step < 4; ++step) {
      const int k = group * kGroupInputs + step * 16 + (lane % 4) * 2;
      uint32_t word = words[step] & (high != 0 ? 0x0F0F0F0FU : 0xF0F0F0F0U);
      const int at = high * 4;
      word |= code_at(codes, source.bits, k) << at;
      word |= code_at(codes, source.bits, k + 1) << (16 + at);
      word |= code_at(codes, source.bits, k + 8) << (8 + at);
      word |= code_at(codes, source.bits, k + 9) << (24 + at);
      words[step] = word;
    }
    if (lane % 4 == 0) {
      const int64_t at =
          static_cast<int64_t>(row) * (source.inputs / source.group_size) + group * kGroupInputs / source.group_size;
      const float scale = scalar_at(source.scales, source.type, at);
      const float bias = scalar_at(source.biases, source.type, at);
      if (scale_overflow != nullptr && !(fabsf(scale) < kScaleLimit)) *scale_overflow = 1;
      const int exponent = high != 0 ? kHighScaleExponent : kLowScaleExponent;
      const uint32_t scale_bits = __float_as_uint(scalbnf(scale, exponent - 64) * 0x1p64F) >> 16;
      pairs[(lane / 4) * 2 + high] = scale_bits | (__float_as_uint(bias / kAffineFactor) & 0xFFFF0000U);
    }
  }
}

__global__ void pack_dense_kernel(PackSource source, uint8_t* data, PackedWeights layout) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t tiles = layout.tiles;
  if (index >= tiles * layout.groups * 128) return;
  const int lane = static_cast<int>(index % 32);
  const int step = static_cast<int>((index / 32) % 4);
  const int group = static_cast<int>((index / 128) % layout.groups);
  const int tile = static_cast<int>(index / 128 / layout.groups);
  auto* values = reinterpret_cast<__nv_bfloat16*>(
      data + group_index(layout, tile, group) * group_bytes(WeightFormat::dense) + step * 512 + lane * 16);
  for (int high = 0; high < 2; ++high) {
    const int row = source_row(source, layout, tile, lane / 4 + high * 8);
    if (row < 0) continue;
    for (int late = 0; late < 2; ++late)
      for (int odd = 0; odd < 2; ++odd) {
        const int k = group * kGroupInputs + step * 16 + (lane % 4) * 2 + late * 8 + odd;
        values[(late * 2 + high) * 2 + odd] = weight_at(source, row, k);
      }
  }
}

}  // namespace

void pack_rows(const PackSource& source, uint8_t* data, const PackedWeights& layout, int32_t* scale_overflow,
               cudaStream_t stream) {
  const int64_t tiles = layout.tiles;
  const bool affine = layout.format == WeightFormat::affine4;
  const int64_t threads = tiles * layout.groups * (affine ? 32 : 128);
  const auto grid = static_cast<unsigned>((threads + 255) / 256);
  if (affine) {
    pack_affine4_kernel<<<grid, 256, 0, stream>>>(source, data, layout, scale_overflow);
  } else {
    pack_dense_kernel<<<grid, 256, 0, stream>>>(source, data, layout);
  }
  cuda_check(cudaGetLastError(), "repack weights");
}

}  // namespace tensorfold::backend::cuda
