// The kernel behind launch_row_product.
//
// The blocks of weights times their slices form one line of units; thread block b takes a contiguous piece of it. One
// warp keeps a ring of shared-memory stages filled with bulk copies (weights before the previous kernel has finished,
// rows after it); eight warps each own one tile of 16 outputs. Slices that follow one another in a piece are added in
// registers; where a block of weights is shared between thread blocks, the one with slice 0 owns it: the others leave
// their slices in `partials` and the owner adds them in order.
#pragma once

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/matrix_unit.cuh"
#include "backend/cuda/row_product.h"

namespace tensorfold::backend::cuda {

constexpr int kConsumerWarps = 8;

template <WeightFormat Format, int RowTiles, int ChunkGroups>
struct RowProductStage {
  static constexpr int weight_bytes = ChunkGroups * group_bytes(Format);
  static constexpr int tile_bytes = ChunkGroups * kGroupInputs * 8 * 2;  // of one tile of 8 rows
  static constexpr int bytes = weight_bytes + RowTiles * tile_bytes;
  static_assert(bytes % 128 == 0);
};

/// The piece of the line of units of thread block `block`.
__device__ inline int piece_begin(int64_t units, int blocks, int block) {
  return static_cast<int>(units * block / blocks);
}
/// The thread block that computes `unit`.
__device__ inline int owner_of(int64_t units, int blocks, int unit) {
  return static_cast<int>(((unit + 1) * static_cast<int64_t>(blocks) + units - 1) / units) - 1;
}

/// `first_half` belongs to tile row r < 8, `second_half` to tile row r + 8; `output` = 16 * tile + r.
__device__ inline void store_outputs(const RowProduct& p, int output, int row, float first_half, float second_half) {
  int columns[2] = {output, output + 8};
  int limit = p.weights.outputs;
  if (p.weights.paired != 0) {
    limit /= 2;
    columns[0] = (output / kTileOutputs) * 8 + output % 8;
    columns[1] = columns[0] + limit;
    if (columns[0] >= limit) return;
    limit *= 2;
  }
  if (p.epilogue == ProductEpilogue::swiglu) {
    const float gate = first_half / (1.0F + __expf(-first_half));
    p.output.set(row, columns[0], gate * second_half);
    return;
  }
  const float values[2] = {first_half, second_half};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (columns[i] >= limit) continue;
    const float before = p.epilogue == ProductEpilogue::add ? p.output.get(row, columns[i]) : 0.0F;
    p.output.set(row, columns[i], p.epilogue == ProductEpilogue::add ? before + values[i] : values[i]);
  }
}

template <WeightFormat Format, int RowTiles, int ChunkGroups>
__device__ inline void load_fragments(uint32_t (&a)[4], int step, const uint4& codes, const uint32_t (&affine)[4],
                                      uint32_t dense_address) {
  if constexpr (Format == WeightFormat::affine4) {
    const uint32_t word = step == 0 ? codes.x : step == 1 ? codes.y : step == 2 ? codes.z : codes.w;
    affine_fragment(a, word, affine[0], affine[1], affine[2], affine[3]);
  } else {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(dense_address + static_cast<uint32_t>(step) * 512U));
  }
}

/// The chain of one group of 64 inputs for one tile of outputs and all row tiles.
template <WeightFormat Format, int RowTiles, int ChunkGroups>
__device__ inline void group_chain(float (&sum)[RowTiles][4], uint32_t weights, uint32_t rows, int warp, int lane) {
  using Stage = RowProductStage<Format, RowTiles, ChunkGroups>;
  uint4 codes{};
  uint32_t affine[4] = {};
  uint32_t dense_address = 0;
  if constexpr (Format == WeightFormat::affine4) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(codes.x), "=r"(codes.y), "=r"(codes.z), "=r"(codes.w)
                 : "r"(weights + static_cast<uint32_t>(warp * 512 + lane * 16)));
    uint32_t low = 0;
    uint32_t high = 0;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                 : "=r"(low), "=r"(high)
                 : "r"(weights + static_cast<uint32_t>(kBlockTiles * 512 + warp * 64 + (lane / 4) * 8)));
    affine[0] = both_low(low);
    affine[1] = both_high(low);
    affine[2] = both_low(high);
    affine[3] = both_high(high);
  } else {
    dense_address = weights + static_cast<uint32_t>(warp * 2048 + lane * 16);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t b[RowTiles][4];
#pragma unroll
    for (int n = 0; n < RowTiles; ++n)
      load_matrices(b[n], rows + static_cast<uint32_t>(n * Stage::tile_bytes + half * 512 + lane * 16));
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[4];
      load_fragments<Format, RowTiles, ChunkGroups>(a, half * 2 + step, codes, affine, dense_address);
#pragma unroll
      for (int n = 0; n < RowTiles; ++n) mma_step(sum[n], a, b[n][step * 2], b[n][step * 2 + 1]);
    }
  }
}

/// Adds the slices that other thread blocks computed, in order.
template <int RowTiles>
__device__ inline void add_foreign_slices(const RowProduct& p, float (&total)[RowTiles][4], int block_of_weights,
                                          int slice, int64_t units, int warp, int lane) {
  const int slices = p.weights.slices;
  while (slice < slices) {
    const int peer = owner_of(units, static_cast<int>(gridDim.x), block_of_weights * slices + slice);
    const int peer_end = piece_begin(units, static_cast<int>(gridDim.x), peer + 1) - block_of_weights * slices;
    const int end = peer_end < slices ? peer_end : slices;
    uint32_t* flag = p.flags + peer * kConsumerWarps + warp;
    if (lane == 0) {
      uint32_t ready = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ready) : "l"(flag) : "memory");
      } while (ready == 0);
    }
    __syncwarp();
    const float4* base = reinterpret_cast<const float4*>(p.partials) +
                         static_cast<int64_t>(peer) * kMostSlices * kConsumerWarps * RowTiles * 32;
#pragma unroll 4
    for (int s = slice; s < end; ++s) {
#pragma unroll
      for (int n = 0; n < RowTiles; ++n) {
        const float4 part = __ldcg(base + ((s * kConsumerWarps + warp) * RowTiles + n) * 32 + lane);
        total[n][0] += part.x;
        total[n][1] += part.y;
        total[n][2] += part.z;
        total[n][3] += part.w;
      }
    }
    __syncwarp();
    if (lane == 0) *flag = 0;
    slice = end;
  }
}

/// Walks the chunks of a piece: at most ChunkGroups groups of one slice of one block of weights at a time.
struct ChunkWalk {
  int block = 0;
  int slice = 0;
  int group = 0;
  int left = 0;  ///< units that have not been finished
  __device__ int take(const int* slice_starts, int slices, int most) {
    const int end = slice_starts[slice + 1];
    const int count = end - group < most ? end - group : most;
    group += count;
    if (group == end) {
      left -= 1;
      if (++slice == slices) {
        slice = 0;
        block += 1;
        group = 0;
      }
    }
    return count;
  }
};

/// One thread: keeps the ring filled. Weights of the first round are asked for before the previous kernels have ended.
template <WeightFormat Format, int RowTiles, int ChunkGroups>
__device__ inline void produce(const RowProduct& p, const int* slice_starts, uint32_t stages_at, uint32_t full,
                               uint32_t empty, int stages, ChunkWalk walk) {
  using Stage = RowProductStage<Format, RowTiles, ChunkGroups>;
  const uint64_t policy = stream_policy();
  const int slices = p.weights.slices;
  const int tile = p.first_row / 8;
  const auto ask_weights = [&](ChunkWalk& w, int stage) {
    const uint8_t* from =
        p.weights.data + (static_cast<int64_t>(w.block) * p.weights.groups + w.group) * group_bytes(Format);
    const int count = w.take(slice_starts, slices, ChunkGroups);
    const auto bytes = static_cast<uint32_t>(count * group_bytes(Format));
    barrier_expect(full + stage * 8, bytes + static_cast<uint32_t>(count * RowTiles * 1024));
    bulk_copy_once(stages_at + static_cast<uint32_t>(stage * Stage::bytes), from, bytes, full + stage * 8, policy);
  };
  const auto ask_rows = [&](ChunkWalk& w, int stage) {
    const int first = w.group;
    const int count = w.take(slice_starts, slices, ChunkGroups);
#pragma unroll
    for (int n = 0; n < RowTiles; ++n)
      bulk_copy(stages_at + static_cast<uint32_t>(stage * Stage::bytes + Stage::weight_bytes + n * Stage::tile_bytes),
                p.input.group_at(tile + n, first), static_cast<uint32_t>(count * 1024), full + stage * 8);
  };
  ChunkWalk rows = walk;
  int asked = 0;
  for (; asked < stages && walk.left > 0; ++asked) ask_weights(walk, asked);
  wait_for_previous_kernels();
  for (int stage = 0; stage < asked; ++stage) ask_rows(rows, stage);
  int stage = 0;
  uint32_t parity = 0;
  while (walk.left > 0) {
    barrier_wait(empty + stage * 8, parity);
    ask_weights(walk, stage);
    ask_rows(rows, stage);
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

template <WeightFormat Format, int RowTiles, int ChunkGroups>
__device__ inline void consume(const RowProduct& p, const int* slice_starts, uint32_t stages_at, uint32_t full,
                               uint32_t empty, int stages, ChunkWalk walk, int64_t units, int warp, int lane) {
  using Stage = RowProductStage<Format, RowTiles, ChunkGroups>;
  const int slices = p.weights.slices;
  const int exist = *p.row_count - p.first_row;
  float total[RowTiles][4];
  int stage = 0;
  uint32_t parity = 0;
  bool owned = false;
  while (walk.left > 0) {
    const int block = walk.block;
    const int slice = walk.slice;
    const int unfinished = walk.left;
    float sum[RowTiles][4];
#pragma unroll
    for (int n = 0; n < RowTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = 0.0F;
    do {
      const int count = walk.take(slice_starts, slices, ChunkGroups);
      const uint32_t at = stages_at + static_cast<uint32_t>(stage * Stage::bytes);
      barrier_wait(full + stage * 8, parity);
#pragma unroll 2
      for (int g = 0; g < count; ++g)
        group_chain<Format, RowTiles, ChunkGroups>(sum, at + static_cast<uint32_t>(g * group_bytes(Format)),
                                                   at + static_cast<uint32_t>(Stage::weight_bytes + g * 1024), warp,
                                                   lane);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + stage * 8);
      if (++stage == stages) {
        stage = 0;
        parity ^= 1;
      }
    } while (walk.left == unfinished);
    if (slice == 0) {
      owned = true;
#pragma unroll
      for (int n = 0; n < RowTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) total[n][i] = sum[n][i];
    } else if (owned) {
#pragma unroll
      for (int n = 0; n < RowTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) total[n][i] += sum[n][i];
    } else {
      float4* base = reinterpret_cast<float4*>(p.partials) +
                     static_cast<int64_t>(blockIdx.x) * kMostSlices * kConsumerWarps * RowTiles * 32;
#pragma unroll
      for (int n = 0; n < RowTiles; ++n)
        __stcg(base + ((slice * kConsumerWarps + warp) * RowTiles + n) * 32 + lane,
               make_float4(sum[n][0], sum[n][1], sum[n][2], sum[n][3]));
    }
    if (slice + 1 != slices && walk.left > 0) continue;
    if (!owned) {
      __threadfence();
      __syncwarp();
      if (lane == 0)
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p.flags + blockIdx.x * kConsumerWarps + warp), "r"(1U)
                     : "memory");
      continue;
    }
    add_foreign_slices<RowTiles>(p, total, block, slice + 1, units, warp, lane);
    const int output = block * kBlockOutputs + warp * kTileOutputs + lane / 4;
#pragma unroll
    for (int n = 0; n < RowTiles; ++n)
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const int row = n * 8 + (lane % 4) * 2 + column;
        if (row < exist) store_outputs(p, output, p.first_row + row, total[n][column], total[n][2 + column]);
      }
    owned = false;
  }
}

template <WeightFormat Format, int RowTiles, int ChunkGroups>
__global__ void __launch_bounds__((kConsumerWarps + 1) * 32, 2)
    row_product_kernel(const __grid_constant__ RowProduct p, int stages) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ int slice_starts[kMostSlices + 1];
  const uint32_t stages_at = shared_address(memory);
  const uint32_t full =
      stages_at + static_cast<uint32_t>(stages * RowProductStage<Format, RowTiles, ChunkGroups>::bytes);
  const uint32_t empty = full + static_cast<uint32_t>(stages * 8);
  const int thread = static_cast<int>(threadIdx.x);
  allow_next_kernel();
  if (thread == 0) {
    for (int i = 0; i < stages; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, kConsumerWarps);
    }
    barrier_init_fence();
  }
  if (thread >= 32 && thread - 32 <= p.weights.slices)
    slice_starts[thread - 32] = slice_begin(p.weights.groups, p.weights.slices, thread - 32);
  __syncthreads();
  const int64_t units = static_cast<int64_t>(p.weights.blocks) * p.weights.slices;
  const int begin = piece_begin(units, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x));
  const int end = piece_begin(units, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x) + 1);
  ChunkWalk walk;
  walk.block = begin / p.weights.slices;
  walk.slice = begin % p.weights.slices;
  walk.group = slice_starts[walk.slice];
  walk.left = end - begin;
  if (thread >= kConsumerWarps * 32) {
    if (thread == kConsumerWarps * 32)
      produce<Format, RowTiles, ChunkGroups>(p, slice_starts, stages_at, full, empty, stages, walk);
  } else {
    wait_for_previous_kernels();  // the epilogue writes what earlier kernels may still read
    consume<Format, RowTiles, ChunkGroups>(p, slice_starts, stages_at, full, empty, stages, walk, units, thread / 32,
                                           thread % 32);
  }
}

}  // namespace tensorfold::backend::cuda
