// The kernel behind launch_row_product.
//
// The units of work are passes: (slice, block of weights), slice by slice; thread block b takes a contiguous piece of
// that line. One warp keeps a ring of shared-memory stages filled with bulk copies (weights before the previous kernels
// have finished, rows after that); ten warps each own one or two tiles of the block. With more than one slice, each
// leaves its sums in `partials`, and whoever arrives last adds them in order.
#pragma once

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/matrix_unit.cuh"
#include "backend/cuda/product_outputs.cuh"
#include "backend/cuda/row_product.h"

namespace tensorfold::backend::cuda {

constexpr int kProductWarps = 10;
constexpr int kTilesAWarp = 2;
static_assert(kProductWarps * kTilesAWarp >= kMostBlockTiles);
constexpr int kProductThreads = (kProductWarps + 1) * 32;

/// The ring: `groups` groups a stage: the weights' groups, then for each row tile its groups.
struct ProductRing {
  int32_t groups = 4;
  int32_t stages = 2;
};

__device__ inline int piece_begin(int units, int blocks, int block) {
  return static_cast<int>(static_cast<uint32_t>(units) * static_cast<uint32_t>(block) / static_cast<uint32_t>(blocks));
}

/// Groups [group, end) of one block of weights: one slice.
struct Pass {
  int slice = 0;
  int block = 0;
  int group = 0;
  int end = 0;
};

__device__ inline Pass find_pass(const PackedWeights& w, int index) {
  Pass pass;
  pass.slice = index / w.blocks;
  pass.block = index % w.blocks;
  pass.group = slice_begin(w.groups, w.slices, pass.slice);
  pass.end = slice_begin(w.groups, w.slices, pass.slice + 1);
  return pass;
}

/// One warp: keeps the ring filled.
template <WeightFormat Format, int RowTiles>
__device__ inline void produce(const RowProduct& p, const ProductRing& ring, uint32_t memory, uint32_t full,
                               uint32_t empty, int begin, int end) {
  const uint64_t policy = stream_policy();
  const int group_stride = p.weights.block_tiles * group_bytes(Format);
  const auto rows_at = static_cast<uint32_t>(ring.groups * group_stride);
  const uint32_t row_stride = static_cast<uint32_t>(ring.groups) * 1024U;
  const uint32_t stage_bytes = rows_at + RowTiles * row_stride;
  const auto ask_weights = [&](const Pass& pass, int group, int stage) {
    const int count = min(ring.groups, pass.end - group);
    const auto bytes = static_cast<uint32_t>(count * group_stride);
    barrier_expect(full + stage * 8, bytes + static_cast<uint32_t>(count * RowTiles) * 1024U);
    bulk_copy_once(memory + stage * stage_bytes,
                   p.weights.data + (static_cast<int64_t>(pass.block) * p.weights.groups + group) * group_stride, bytes,
                   full + stage * 8, policy);
  };
  const auto ask_rows = [&](const Pass& pass, int group, int stage) {
    const int count = min(ring.groups, pass.end - group);
#pragma unroll
    for (int n = 0; n < RowTiles; ++n)
      bulk_copy(memory + stage * stage_bytes + rows_at + n * row_stride, p.input.group_at(p.first_row / 8 + n, group),
                static_cast<uint32_t>(count) * 1024U, full + stage * 8);
  };
  // The first round's weights, then the wait for the previous kernels, then its rows; later both together.
  int asked = 0;
  for (int index = begin; index < end && asked < ring.stages; ++index) {
    const Pass pass = find_pass(p.weights, index);
    for (int group = pass.group; group < pass.end && asked < ring.stages; group += ring.groups, ++asked)
      ask_weights(pass, group, asked);
  }
  wait_for_previous_kernels();
  int stage = 0;
  uint32_t parity = 1;  // of the first round: nothing to wait for
  int chunk = 0;
  for (int index = begin; index < end; ++index) {
    const Pass pass = find_pass(p.weights, index);
    for (int group = pass.group; group < pass.end; group += ring.groups, ++chunk) {
      if (chunk >= asked) {
        barrier_wait(empty + stage * 8, parity);
        ask_weights(pass, group, stage);
      }
      ask_rows(pass, group, stage);
      if (++stage == ring.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

__device__ inline AffineGroup load_affine(const uint8_t* group, int lane) {
  return {*reinterpret_cast<const uint4*>(group + lane * 16),
          *reinterpret_cast<const uint2*>(group + 512 + (lane / 4) * 8)};
}

/// From a warp's first tile to its second.
template <WeightFormat Format>
constexpr int second_tile = kProductWarps * group_bytes(Format);

/// The chains of one group of 64 inputs for `Tiles` tiles and all row tiles.
template <WeightFormat Format, int RowTiles, int Tiles>
__device__ inline void group_chain(float (&sum)[kTilesAWarp][RowTiles][4], const AffineGroup (&affine)[Tiles],
                                   const uint8_t* weights, uint32_t rows, uint32_t row_stride, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t b[RowTiles][4];
#pragma unroll
    for (int n = 0; n < RowTiles; ++n)
      load_matrices(b[n], rows + n * row_stride + static_cast<uint32_t>(half * 512 + lane * 16));
#pragma unroll
    for (int step = half * 2; step < half * 2 + 2; ++step) {
      uint32_t a[Tiles][4];
#pragma unroll
      for (int t = 0; t < Tiles; ++t) {
        if constexpr (Format == WeightFormat::affine4) {
          const uint4& w = affine[t].words;
          affine_fragment(a[t],
                          step == 0   ? w.x
                          : step == 1 ? w.y
                          : step == 2 ? w.z
                                      : w.w,
                          AffineScales(affine[t].pairs));
        } else {
          const uint4 words =
              *reinterpret_cast<const uint4*>(weights + t * second_tile<Format> + step * 512 + lane * 16);
          a[t][0] = words.x;
          a[t][1] = words.y;
          a[t][2] = words.z;
          a[t][3] = words.w;
        }
      }
#pragma unroll
      for (int t = 0; t < Tiles; ++t)
#pragma unroll
        for (int n = 0; n < RowTiles; ++n) mma_step(sum[t][n], a[t], b[n][(step % 2) * 2], b[n][(step % 2) * 2 + 1]);
    }
  }
}

/// All groups of one stage; the next group's weights are loaded while one is multiplied.
template <WeightFormat Format, int RowTiles, int Tiles>
__device__ inline void stage_chain(float (&sum)[kTilesAWarp][RowTiles][4], const uint8_t* weights, int group_stride,
                                   uint32_t rows, uint32_t row_stride, int count, int lane) {
  AffineGroup now[Tiles] = {};
  if constexpr (Format == WeightFormat::affine4) {
#pragma unroll
    for (int t = 0; t < Tiles; ++t) now[t] = load_affine(weights + t * second_tile<Format>, lane);
  }
#pragma unroll 2
  for (int g = 0; g < count; ++g) {
    AffineGroup next[Tiles] = {};
    if constexpr (Format == WeightFormat::affine4) {
      const int ahead = g + 1 < count ? group_stride : 0;
#pragma unroll
      for (int t = 0; t < Tiles; ++t) next[t] = load_affine(weights + t * second_tile<Format> + ahead, lane);
    }
    group_chain<Format, RowTiles, Tiles>(sum, now, weights, rows, row_stride, lane);
    weights += group_stride;
    rows += 1024;
#pragma unroll
    for (int t = 0; t < Tiles; ++t) now[t] = next[t];
  }
}

/// Leaves a slice's sums; the last to arrive gets all of them, added in slice order, and true.
template <int RowTiles>
__device__ inline bool add_slices(const RowProduct& p, float (&sum)[RowTiles][4], int slice, int tile, int lane) {
  const PackedWeights& w = p.weights;
  float4* partials = reinterpret_cast<float4*>(p.partials) + lane;
#pragma unroll
  for (int n = 0; n < RowTiles; ++n)
    __stcg(partials + ((static_cast<int64_t>(slice) * w.tiles + tile) * RowTiles + n) * 32,
           make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]));
  __syncwarp();
  uint32_t before = 0;
  // Lane 0's release covers what the other lanes wrote before the warp's barrier; its acquire, what they read after.
  if (lane == 0)
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(p.arrivals + tile) : "memory");
  before = __shfl_sync(0xFFFFFFFFU, before, 0);
  if (before + 1 != static_cast<uint32_t>(w.slices)) return false;
  if (lane == 0) p.arrivals[tile] = 0;
#pragma unroll
  for (int n = 0; n < RowTiles; ++n) {
#pragma unroll 4
    for (int s = 0; s < w.slices; ++s) {
      const float4 part = __ldcg(partials + ((static_cast<int64_t>(s) * w.tiles + tile) * RowTiles + n) * 32);
      sum[n][0] = s == 0 ? part.x : sum[n][0] + part.x;
      sum[n][1] = s == 0 ? part.y : sum[n][1] + part.y;
      sum[n][2] = s == 0 ? part.z : sum[n][2] + part.z;
      sum[n][3] = s == 0 ? part.w : sum[n][3] + part.w;
    }
  }
  return true;
}

template <WeightFormat Format, int RowTiles>
__device__ inline void consume(const RowProduct& p, const ProductRing& ring, const uint8_t* memory, uint32_t full,
                               uint32_t empty, int begin, int end, int warp, int lane) {
  const int group_stride = p.weights.block_tiles * group_bytes(Format);
  const auto rows_at = static_cast<uint32_t>(ring.groups * group_stride);
  const uint32_t row_stride = static_cast<uint32_t>(ring.groups) * 1024U;
  const uint32_t stage_bytes = rows_at + RowTiles * row_stride;
  const uint32_t memory_at = shared_address(memory);
  const int exist = *p.row_count - p.first_row;
  const int own_tiles = warp + kProductWarps < p.weights.block_tiles ? 2 : warp < p.weights.block_tiles ? 1 : 0;
  int stage = 0;
  uint32_t parity = 0;
  for (int index = begin; index < end; ++index) {
    const Pass pass = find_pass(p.weights, index);
    float sum[kTilesAWarp][RowTiles][4] = {};
    for (int group = pass.group; group < pass.end; group += ring.groups) {
      const int count = min(ring.groups, pass.end - group);
      const uint8_t* weights = memory + stage * stage_bytes + warp * group_bytes(Format);
      const uint32_t rows = memory_at + stage * stage_bytes + rows_at;
      barrier_wait(full + stage * 8, parity);
      if (own_tiles == 2) {
        stage_chain<Format, RowTiles, 2>(sum, weights, group_stride, rows, row_stride, count, lane);
      } else if (own_tiles == 1) {
        stage_chain<Format, RowTiles, 1>(sum, weights, group_stride, rows, row_stride, count, lane);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + stage * 8);
      if (++stage == ring.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
#pragma unroll
    for (int t = 0; t < kTilesAWarp; ++t) {
      const int tile = pass.block * p.weights.block_tiles + warp + t * kProductWarps;
      if (t >= own_tiles || tile >= p.weights.tiles) break;
      if (p.weights.slices > 1 && !add_slices<RowTiles>(p, sum[t], pass.slice, tile, lane)) continue;
      write_outputs<RowTiles>(p, sum[t], tile, p.first_row, exist, lane);
    }
  }
}

template <WeightFormat Format, int RowTiles>
__global__ void __launch_bounds__(kProductThreads, RowTiles == 4 ? 1 : 2)
    row_product_kernel(const __grid_constant__ RowProduct p, const __grid_constant__ ProductRing ring) {
  extern __shared__ __align__(128) uint8_t memory[];
  const auto stage_bytes =
      static_cast<uint32_t>(ring.groups * (p.weights.block_tiles * group_bytes(Format) + RowTiles * 1024));
  const uint32_t full = shared_address(memory) + static_cast<uint32_t>(ring.stages) * stage_bytes;
  const uint32_t empty = full + static_cast<uint32_t>(ring.stages * 8);
  const int thread = static_cast<int>(threadIdx.x);
  allow_next_kernel();
  if (thread == 0) {
    for (int i = 0; i < ring.stages; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, kProductWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int passes = p.weights.blocks * p.weights.slices;
  const int begin = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x));
  const int end = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x) + 1);
  if (thread >= kProductWarps * 32) {
    if (thread == kProductWarps * 32)
      produce<Format, RowTiles>(p, ring, shared_address(memory), full, empty, begin, end);
  } else {
    wait_for_previous_kernels();  // the epilogue writes what earlier kernels may still read
    consume<Format, RowTiles>(p, ring, memory, full, empty, begin, end, thread / 32, thread % 32);
  }
}

}  // namespace tensorfold::backend::cuda
