// A thread block walks through pieces of 128 outputs by Rows rows. One warpgroup brings rows (by tensor map) and
// weights, a group of 64 inputs a stage of a ring; two others multiply, each 64 outputs, and make a group's fragments
// while the tensor cores work on the group before it.
#include <algorithm>
#include <mutex>

#include <cuda.h>

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/matrix_unit.cuh"
#include "backend/cuda/product_totals.cuh"
#include "backend/cuda/prompt_product.h"
#include "backend/cuda/warpgroup_step.cuh"

namespace tensorfold::backend::cuda {
namespace {

constexpr int kConsumers = 256;
constexpr int kProducers = 128;
constexpr int kThreads = kConsumers + kProducers;
constexpr int kBlockTiles = 8;
constexpr uint32_t kTileBytes = group_bytes(WeightFormat::affine4);
constexpr size_t kMostShared = 227 * 1024;

template <int Rows>
struct PromptStage {
  static constexpr uint32_t weights_at = Rows * 128;
  static constexpr uint32_t bytes = weights_at + kBlockTiles * kTileBytes;
  static_assert(bytes % 128 == 0);
};

/// The pieces of a launch: rows fastest, so that those who work together read the same weights.
struct PromptPieces {
  int32_t row_blocks;
  int32_t count;
  int32_t end_row;
  int32_t stages;
};

/// One warpgroup: keeps the ring filled.
template <int Rows>
__device__ inline void produce(const RowProduct& p, const CUtensorMap& map, const PromptPieces& pieces, uint32_t memory,
                               uint32_t full, uint32_t empty, int thread) {
  using Stage = PromptStage<Rows>;
  constexpr int chunks = kTileBytes / 16;
  constexpr int all = kBlockTiles * chunks;
  constexpr int copies = (all + kProducers - 1) / kProducers;
  const int groups = p.weights.groups;
  const auto weight_step = static_cast<uint32_t>(p.weights.block_tiles * chunks);
  int stage = 0;
  uint32_t parity = 1;  // of the first round: nothing to wait for
  for (int piece = static_cast<int>(blockIdx.x); piece < pieces.count; piece += static_cast<int>(gridDim.x)) {
    const int row_block = piece % pieces.row_blocks;
    const int first_tile = piece / pieces.row_blocks * kBlockTiles;
    uint32_t weights[copies];  // in 16 bytes
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      const int at = i * kProducers + thread;
      int tile = first_tile + at / chunks;
      if (tile >= p.weights.blocks * p.weights.block_tiles) tile = 0;  // past the end: anything
      const int64_t block = tile / p.weights.block_tiles;
      weights[i] =
          static_cast<uint32_t>((block * groups * p.weights.block_tiles + tile % p.weights.block_tiles) * chunks) +
          static_cast<uint32_t>(at % chunks);
    }
    for (int group = 0; group < groups; ++group) {
      const uint32_t at = memory + static_cast<uint32_t>(stage) * Stage::bytes;
      barrier_wait(empty + stage * 8, parity);
      if (thread == 0) {
        barrier_expect(full + stage * 8, Rows * 128);
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
            "%4}], [%5];" ::"r"(at),
            "l"(&map), "r"(0), "r"(group * 8), "r"(row_block * (Rows / 8)), "r"(full + stage * 8)
            : "memory");
      }
#pragma unroll
      for (int i = 0; i < copies; ++i) {
        if (i * kProducers + thread < all)
          copy_16(at + Stage::weights_at + static_cast<uint32_t>(i * kProducers + thread) * 16,
                  p.weights.data + static_cast<size_t>(weights[i]) * 16);
        weights[i] += weight_step;
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + stage * 8) : "memory");
      if (++stage == pieces.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

/// A warpgroup's place in the ring and what it needs there.
template <int Rows>
struct PromptConsumer {
  using Stage = PromptStage<Rows>;
  uint32_t memory;
  uint32_t full;
  uint32_t empty;
  int stages;
  int warp;
  int lane;
  RingStage stage = {};
  float total[Rows / 2];

  __device__ uint32_t stage_at(int i) const { return memory + static_cast<uint32_t>(i) * Stage::bytes; }

  /// The fragments of the stage after the last one made.
  __device__ void make(uint32_t (&a)[4][4], const RingStage& from) const {
    const uint32_t tile = stage_at(from.at) + Stage::weights_at + static_cast<uint32_t>(warp) * kTileBytes;
    AffineGroup group;
    barrier_wait(full + from.at * 8, from.parity);
    load_affine(group, tile + static_cast<uint32_t>(lane) * 16, tile + 512 + static_cast<uint32_t>(lane / 4) * 8);
    affine_fragments(a, group);
  }
  __device__ void start(const uint32_t (&a)[4][4], int from, int accumulate) {
    warpgroup_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      warpgroup_step(total, a[step], rows_descriptor(stage_at(from) + static_cast<uint32_t>(step * 256)),
                     step == 0 ? accumulate : 1);
    warpgroup_commit();
  }
  __device__ void release(int from) const {
    if (lane == 0) barrier_arrive(empty + from * 8);
  }

  /// The chain of one slice. Two groups' steps are under way while the next one's fragments are made.
  __device__ void multiply(int groups) {
    uint32_t even[4][4];
    uint32_t odd[4][4];
    make(even, stage);
    start(even, stage.at, 0);
    // `now` runs, the fragments of the group after it are made and started, then `now` is waited for.
    const auto turn = [&](uint32_t(&next)[4][4]) {
      const int before = stage.at;
      stage.advance(stages);
      make(next, stage);
      start(next, stage.at, 1);
      warpgroup_wait<1>(total);
      release(before);
    };
    int left = groups - 1;
#pragma unroll 1
    for (; left > 1; left -= 2) {
      turn(odd);
      turn(even);
    }
    if (left > 0) turn(odd);
    warpgroup_wait<0>(total);
    release(stage.at);
    stage.advance(stages);
  }
};

template <int Rows, bool Sliced>
__global__ void __launch_bounds__(kThreads, 1)
    prompt_product_kernel(const __grid_constant__ RowProduct p, const __grid_constant__ CUtensorMap map,
                          const __grid_constant__ PromptPieces pieces) {
  using Stage = PromptStage<Rows>;
  extern __shared__ __align__(128) uint8_t memory[];
  allow_next_kernel();
  const auto thread = static_cast<int>(threadIdx.x);
  const uint32_t base = shared_address(memory);
  const uint32_t full = base + static_cast<uint32_t>(pieces.stages) * Stage::bytes;
  const uint32_t empty = full + static_cast<uint32_t>(pieces.stages) * 8;
  if (thread == 0) {
    for (int i = 0; i < pieces.stages; ++i) {
      barrier_init(full + i * 8, 1 + kProducers);
      barrier_init(empty + i * 8, kConsumers / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_kernels();
  if (thread >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    produce<Rows>(p, map, pieces, base, full, empty, thread - kConsumers);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  // Sums of the slices so far, in shared memory.
  float* kept = reinterpret_cast<float*>(memory + static_cast<size_t>(pieces.stages) * (Stage::bytes + 16)) + thread;
  PromptConsumer<Rows> consumer{base, full, empty, pieces.stages, thread / 32, thread % 32};
  for (int piece = static_cast<int>(blockIdx.x); piece < pieces.count; piece += static_cast<int>(gridDim.x)) {
    const int slices = Sliced ? p.weights.slices : 1;
    for (int slice = 0; slice < slices; ++slice) {
      consumer.multiply(slice_begin(p.weights.groups, slices, slice + 1) -
                        slice_begin(p.weights.groups, slices, slice));
      if constexpr (Sliced) {
#pragma unroll
        for (int i = 0; i < Rows / 2; ++i) {
          float& total = consumer.total[i];
          float* at = kept + i * kConsumers;
          if (slice > 0) total = *at + total;
          if (slice + 1 < slices) *at = total;
        }
      }
    }
    const int first_row = p.first_row + piece % pieces.row_blocks * Rows;
    const int tile = piece / pieces.row_blocks * kBlockTiles + thread / 32;
    constexpr int part = Rows < 128 ? Rows / 8 : 16;
#pragma unroll
    for (int from = 0; from < Rows / 8; from += part) {
      float out[part][4];
#pragma unroll
      for (int i = 0; i < part * 4; ++i) out[i / 4][i % 4] = consumer.total[from * 4 + i];
      write_totals<part>(p, out, tile, first_row + from * 8, pieces.end_row, thread % 32);
    }
  }
}

/// Rows as boxes of 8 blocks (64 inputs) by Rows / 8 tiles.
CUtensorMap rows_map(const RowProduct& p, int row_tiles, int box_tiles) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
               "find the driver's tensor maps");
    return reinterpret_cast<Encode>(function);
  }();
  CUtensorMap map{};
  const cuuint64_t sizes[3] = {64, static_cast<cuuint64_t>(p.weights.groups) * 8, static_cast<cuuint64_t>(row_tiles)};
  const cuuint64_t strides[2] = {128, static_cast<cuuint64_t>(p.input.stride) * 16};
  const cuuint32_t box[3] = {64, 8, static_cast<cuuint32_t>(box_tiles)};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<uint8_t*>(p.input.group_at(p.first_row / 8, 0)),
             sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  cuda_check(result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue, "map a product's rows");
  return map;
}

template <int Rows>
PromptPieces pieces_of(const RowProduct& product, int rows) {
  PromptPieces pieces{};
  pieces.row_blocks = (rows + Rows - 1) / Rows;
  pieces.count = pieces.row_blocks * ((product.weights.tiles + kBlockTiles - 1) / kBlockTiles);
  pieces.end_row = product.first_row + rows;
  return pieces;
}

/// Turns of the machine times the size of a piece.
template <int Rows>
double cost_of(const RowProduct& product, int rows, int processors, double of_piece) {
  const int count = pieces_of<Rows>(product, rows).count;
  return (count + processors - 1) / processors * of_piece;
}

template <int Rows, bool Sliced>
void launch_as(const RowProduct& product, int rows, int processors, cudaStream_t stream) {
  using Stage = PromptStage<Rows>;
  constexpr size_t kept = Sliced ? static_cast<size_t>(Rows / 2) * kConsumers * sizeof(float) : 0;
  constexpr int stages = static_cast<int>(std::min<size_t>(12, (kMostShared - kept) / (Stage::bytes + 16)));
  static_assert(stages >= 3);
  constexpr size_t shared = static_cast<size_t>(stages) * (Stage::bytes + 16) + kept;
  static std::once_flag once;
  std::call_once(once, [] { allow_shared_memory(prompt_product_kernel<Rows, Sliced>, shared); });
  PromptPieces pieces = pieces_of<Rows>(product, rows);
  pieces.stages = stages;
  const CUtensorMap map = rows_map(product, (rows + 127) / 128 * 16, Rows / 8);
  launch(prompt_product_kernel<Rows, Sliced>, dim3(static_cast<unsigned>(std::min(processors, pieces.count))),
         dim3(kThreads), shared, stream, product, map, pieces);
}

template <bool Sliced>
void launch_best(const RowProduct& product, int rows, int processors, cudaStream_t stream) {
  const double narrow = cost_of<64>(product, rows, processors, 0.7);
  const double middle = cost_of<128>(product, rows, processors, 1.0);
  const double wide = Sliced ? 1e9 : cost_of<256>(product, rows, processors, 1.9);
  if (wide <= middle && wide <= narrow)
    launch_as<Sliced ? 128 : 256, Sliced>(product, rows, processors, stream);
  else if (middle <= narrow)
    launch_as<128, Sliced>(product, rows, processors, stream);
  else
    launch_as<64, Sliced>(product, rows, processors, stream);
}

}  // namespace

void launch_prompt_product(const RowProduct& product, int rows, int processors, cudaStream_t stream) {
  if (product.weights.format == WeightFormat::dense)
    launch_dense_prompt_product(product, rows, stream);
  else if (product.weights.slices > 1)
    launch_best<true>(product, rows, processors, stream);
  else
    launch_best<false>(product, rows, processors, stream);
}

}  // namespace tensorfold::backend::cuda
