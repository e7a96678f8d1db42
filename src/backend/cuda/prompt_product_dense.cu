#include <mutex>

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/matrix_unit.cuh"
#include "backend/cuda/product_outputs.cuh"
#include "backend/cuda/prompt_product.h"
#include "backend/cuda/warpgroup_step.cuh"

namespace tensorfold::backend::cuda {
namespace {

constexpr int kWarps = 8;  // two warpgroups; each warp owns a tile of 16 outputs
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 4;
constexpr int kTileBytes = group_bytes(WeightFormat::dense);

template <int RowTiles>
constexpr int kStageBytes = RowTiles * 1024 + kWarps * kTileBytes;

__device__ inline const uint8_t* tile_at(const PackedWeights& w, int tile, int group) {
  if (tile >= w.blocks * w.block_tiles) tile = 0;  // past the end: anything
  const int64_t block = tile / w.block_tiles;
  return w.data + ((block * w.groups + group) * w.block_tiles + tile % w.block_tiles) * kTileBytes;
}

/// What a thread copies of every group: pieces of 16 bytes of rows and of weights.
template <int RowTiles>
struct Copies {
  static constexpr int row_pieces = RowTiles * 64 / kThreads;
  static constexpr int weight_chunks = kWarps * kTileBytes / 16;
  static constexpr int weight_pieces = (weight_chunks + kThreads - 1) / kThreads;
  const uint8_t* rows[row_pieces];
  const uint8_t* weights[weight_pieces];
  int64_t weight_step;

  __device__ Copies(const RowProduct& p, int first_tile, int first_row_tile, int thread) {
    constexpr int chunks = kTileBytes / 16;
#pragma unroll
    for (int i = 0; i < row_pieces; ++i) {
      const int chunk = i * kThreads + thread;
      rows[i] = p.input.group_at(first_row_tile + chunk / 64, 0) + (chunk % 64) * 16;
    }
#pragma unroll
    for (int i = 0; i < weight_pieces; ++i) {
      const int chunk = i * kThreads + thread;
      weights[i] = tile_at(p.weights, first_tile + chunk / chunks, 0) + (chunk % chunks) * 16;
    }
    weight_step = static_cast<int64_t>(p.weights.block_tiles) * kTileBytes;
  }

  /// The next group, into a stage.
  __device__ void load(uint32_t stage, int thread) {
#pragma unroll
    for (int i = 0; i < row_pieces; ++i) {
      copy_16(stage + static_cast<uint32_t>((i * kThreads + thread) * 16), rows[i]);
      rows[i] += 1024;
    }
#pragma unroll
    for (int i = 0; i < weight_pieces; ++i) {
      const int chunk = i * kThreads + thread;
      if (chunk < weight_chunks) copy_16(stage + static_cast<uint32_t>(RowTiles * 1024 + chunk * 16), weights[i]);
      weights[i] += weight_step;
    }
  }
};

/// This warp's fragments of the four steps of a group.
__device__ inline void load_fragments(uint32_t (&a)[4][4], const uint8_t* weights, int lane) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint4 words = *reinterpret_cast<const uint4*>(weights + step * 512 + lane * 16);
    a[step][0] = words.x;
    a[step][1] = words.y;
    a[step][2] = words.z;
    a[step][3] = words.w;
  }
}

/// RowTiles 16 for matrices of one slice; 8 where `Sliced`, whose totals take registers too.
template <int RowTiles, bool Sliced>
__global__ void __launch_bounds__(kThreads, 2)
    dense_prompt_product_kernel(const __grid_constant__ RowProduct p, int end_row) {
  extern __shared__ __align__(128) uint8_t memory[];
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int first_row = p.first_row + static_cast<int>(blockIdx.x) * RowTiles * 8;
  const int first_tile = static_cast<int>(blockIdx.y) * kWarps;
  const uint32_t base = shared_address(memory);
  const int groups = p.weights.groups;
  Copies<RowTiles> copies(p, first_tile, first_row / 8, thread);
  wait_for_previous_kernels();
  const auto load = [&](int group) {
    if (group < groups) copies.load(base + static_cast<uint32_t>((group % kStages) * kStageBytes<RowTiles>), thread);
    commit_copies();
  };
  float sum[RowTiles * 4];
  float total[Sliced ? RowTiles * 4 : 1];
  const auto stage_of = [&](int group) { return static_cast<uint32_t>((group % kStages) * kStageBytes<RowTiles>); };
  const auto fragments_of = [&](uint32_t(&a)[4][4], int group) {
    load_fragments(a, memory + stage_of(group) + RowTiles * 1024 + warp * kTileBytes, lane);
  };
  // While the tensor cores multiply a group, the next one's fragments are made and the one after it is loaded.
  load(0);
  load(1);
  int slice = 0;
  int slice_end = slice_begin(groups, p.weights.slices, 1);
  int accumulate = 0;
  const auto arrive = [] {  // the oldest load, everywhere in the block
    wait_copies<1>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
  };
  const auto multiply = [&](uint32_t(&a)[4][4], uint32_t(&next)[4][4], int group) {
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      warpgroup_step(sum, a[step], rows_descriptor(base + stage_of(group) + static_cast<uint32_t>(step * 256)),
                     step == 0 ? accumulate : 1);
    }
    warpgroup_commit();
    arrive();
    load(group + 3);  // into the stage of the group before this one, whose products all warps have seen
    if (group + 1 < groups) fragments_of(next, group + 1);
    warpgroup_wait<0>(sum);
    accumulate = 1;
    if constexpr (Sliced) {
      if (group + 1 == slice_end) {
#pragma unroll
        for (int i = 0; i < RowTiles * 4; ++i) total[i] = slice == 0 ? sum[i] : total[i] + sum[i];
        slice += 1;
        slice_end = slice_begin(groups, p.weights.slices, slice + 1);
        accumulate = 0;
      }
    }
  };
  uint32_t even[4][4];
  uint32_t odd[4][4];
  arrive();
  load(2);
  fragments_of(even, 0);
#pragma unroll 1
  for (int group = 0; group < groups; group += 2) {
    multiply(even, odd, group);
    if (group + 1 < groups) multiply(odd, even, group + 1);
  }
  const int tile = first_tile + warp;
  if (tile >= p.weights.tiles) return;
#pragma unroll
  for (int n = 0; n < RowTiles; ++n) {
    const int row = first_row + n * 8;
    float out[1][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) out[0][i] = Sliced ? total[Sliced ? n * 4 + i : 0] : sum[n * 4 + i];
    if (row < end_row) write_outputs<1>(p, out, tile, row, end_row - row, lane);
  }
}

template <int RowTiles, bool Sliced>
void launch_as(const RowProduct& product, int rows, cudaStream_t stream) {
  constexpr size_t shared = static_cast<size_t>(kStages) * kStageBytes<RowTiles>;
  static std::once_flag once;
  std::call_once(once, [] { allow_shared_memory(dense_prompt_product_kernel<RowTiles, Sliced>, shared); });
  const dim3 grid(static_cast<unsigned>((rows + RowTiles * 8 - 1) / (RowTiles * 8)),
                  static_cast<unsigned>((product.weights.tiles + kWarps - 1) / kWarps));
  launch(dense_prompt_product_kernel<RowTiles, Sliced>, grid, dim3(kThreads), shared, stream, product,
         product.first_row + rows);
}

}  // namespace

void launch_dense_prompt_product(const RowProduct& product, int rows, cudaStream_t stream) {
  if (product.weights.slices == 1)
    launch_as<16, false>(product, rows, stream);
  else
    launch_as<8, true>(product, rows, stream);
}

}  // namespace tensorfold::backend::cuda
