// The row product of 17 to 32 rows with 4-bit weights: warpgroups of four tiles instead of warps, so that the tensor
// cores read the rows from shared memory themselves (registers of 32 rows' fragments would be read again by every
// warp).
//
// The ring, its passes and the slices are those of row_product.cuh; one warp copies.
#include <algorithm>
#include <mutex>

#include "backend/cuda/launch.h"
#include "backend/cuda/product_totals.cuh"
#include "backend/cuda/row_product.cuh"
#include "backend/cuda/row_product_wide.h"
#include "backend/cuda/warpgroup_step.cuh"

namespace tensorfold::backend::cuda {
namespace {

constexpr int kRows = 32;
constexpr int kRowTiles = kRows / 8;
constexpr uint32_t kTileBytes = group_bytes(WeightFormat::affine4);

/// Addresses in shared memory: stages, then barriers.
struct WideMemory {
  uint32_t base;
  uint32_t group_stride;  ///< bytes of a group of a block of weights
  int groups;             ///< a stage
  int stages;
  __device__ uint32_t row_stride() const { return static_cast<uint32_t>(groups) * 1024U; }
  __device__ uint32_t rows_at() const { return static_cast<uint32_t>(groups) * group_stride; }
  __device__ uint32_t stage_bytes() const { return rows_at() + kRowTiles * row_stride(); }
  __device__ uint32_t stage(int i) const { return base + static_cast<uint32_t>(i) * stage_bytes(); }
  __device__ uint32_t full(int i) const { return stage(stages) + static_cast<uint32_t>(i) * 16; }
  __device__ uint32_t empty(int i) const { return full(i) + 8; }
};

/// Calls use(pass, group, count) for each stage of passes [begin, end).
template <typename Use>
__device__ inline void for_each_stage(const PackedWeights& w, int groups, int begin, int end, Use&& use) {
  for (int index = begin; index < end; ++index) {
    const Pass pass = find_pass(w, index);
    for (int group = pass.group; group < pass.end; group += groups) use(pass, group, min(groups, pass.end - group));
  }
}

/// One thread: keeps the ring filled. The first round's weights do not wait for the previous kernels.
__device__ inline void copy_stages(const RowProduct& p, const WideMemory& m, int begin, int end) {
  const uint64_t policy = stream_policy();
  const auto ask_weights = [&](const Pass& pass, int group, int count, int stage) {
    const uint32_t bytes = static_cast<uint32_t>(count) * m.group_stride;
    barrier_expect(m.full(stage), bytes + static_cast<uint32_t>(count * kRowTiles) * 1024U);
    bulk_copy_once(m.stage(stage),
                   p.weights.data + (static_cast<int64_t>(pass.block) * p.weights.groups + group) * m.group_stride,
                   bytes, m.full(stage), policy);
  };
  int asked = 0;
  for_each_stage(p.weights, m.groups, begin, end, [&](const Pass& pass, int group, int count) {
    if (asked < m.stages) ask_weights(pass, group, count, asked++);
  });
  wait_for_previous_kernels();
  RingStage place{0, 1};
  int turn = 0;
  for_each_stage(p.weights, m.groups, begin, end, [&](const Pass& pass, int group, int count) {
    if (turn++ >= asked) {
      barrier_wait(m.empty(place.at), place.parity);
      ask_weights(pass, group, count, place.at);
    }
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n)
      bulk_copy(m.stage(place.at) + m.rows_at() + static_cast<uint32_t>(n) * m.row_stride(),
                p.input.group_at(p.first_row / 8 + n, group), static_cast<uint32_t>(count) * 1024U, m.full(place.at));
    place.advance(m.stages);
  });
}

/// What a warpgroup reads of a stage, group by group: addresses of this lane.
struct GroupReader {
  uint32_t codes;
  uint32_t pairs;
  uint32_t rows;    ///< the descriptor's low half
  uint32_t stride;  ///< and its high half
  uint32_t group_stride;

  __device__ GroupReader(const WideMemory& m, int stage, int slot, int lane) {
    const uint32_t tile = m.stage(stage) + static_cast<uint32_t>(slot) * kTileBytes;
    codes = tile + static_cast<uint32_t>(lane) * 16;
    pairs = tile + 512 + static_cast<uint32_t>(lane / 4) * 8;
    const uint64_t descriptor = rows_descriptor(m.stage(stage) + m.rows_at(), m.row_stride());
    rows = static_cast<uint32_t>(descriptor);
    stride = static_cast<uint32_t>(descriptor >> 32);
    group_stride = m.group_stride;
  }
  __device__ uint64_t descriptor(int step) const {
    return static_cast<uint64_t>(stride) << 32 | (rows + static_cast<uint32_t>(step * 16));
  }
  /// The weights of the next group; behind a stage's last group: anything.
  __device__ void load(AffineGroup& g) {
    load_affine(g, codes, pairs);
    codes += group_stride;
    pairs += group_stride;
  }
};

/// Makes the fragments of the group that was loaded, loads the next one's weights, and starts the group's steps.
__device__ inline void start_group(float (&sum)[kRows / 2], uint32_t (&a)[4][4], AffineGroup& group,
                                   GroupReader& reader, int accumulate) {
  affine_fragments(a, group);
  reader.load(group);
  warpgroup_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step)
    warpgroup_step(sum, a[step], reader.descriptor(step), step == 0 ? accumulate : 1);
  warpgroup_commit();
  reader.rows += 64;
}

/// The chain of one stage. `Ahead`: two groups' steps are under way while the next one's fragments are made; with many
/// warpgroups registers are too few for that, and they fill each other's gaps.
template <bool Ahead>
__device__ inline void multiply_stage(float (&sum)[kRows / 2], GroupReader reader, int count, int accumulate) {
  AffineGroup group;
  uint32_t even[4][4];
  reader.load(group);
  if constexpr (Ahead) {
    uint32_t odd[4][4];
    start_group(sum, even, group, reader, accumulate);
    int left = count - 1;
#pragma unroll 1
    for (; left > 1; left -= 2) {
      start_group(sum, odd, group, reader, 1);
      warpgroup_wait<1>(sum);
      start_group(sum, even, group, reader, 1);
      warpgroup_wait<1>(sum);
    }
    if (left > 0) start_group(sum, odd, group, reader, 1);
    warpgroup_wait<0>(sum);
  } else {
#pragma unroll 1
    for (int left = count; left > 0; --left) {
      start_group(sum, even, group, reader, accumulate);
      accumulate = 1;
      warpgroup_wait<0>(sum);
    }
  }
}

/// One warpgroup, a tile of the block a warp.
template <bool Ahead>
__device__ inline void multiply_passes(const RowProduct& p, const WideMemory& m, int begin, int end, int slot,
                                       int lane) {
  const int end_row = min(*p.row_count, p.first_row + kRows);
  const bool works = slot / 4 * 4 < p.weights.block_tiles;
  const int read_slot = min(slot, p.weights.block_tiles - 1);  // warps beyond the last tile only keep step
  RingStage place;
  for (int index = begin; index < end; ++index) {
    const Pass pass = find_pass(p.weights, index);
    float sum[kRows / 2] = {};
    for (int group = pass.group; group < pass.end; group += m.groups) {
      barrier_wait(m.full(place.at), place.parity);
      if (works)
        multiply_stage<Ahead>(sum, GroupReader(m, place.at, read_slot, lane), min(m.groups, pass.end - group),
                              group == pass.group ? 0 : 1);
      __syncwarp();
      if (lane == 0) barrier_arrive(m.empty(place.at));
      place.advance(m.stages);
    }
    const int tile = pass.block * p.weights.block_tiles + slot;
    if (slot >= p.weights.block_tiles || tile >= p.weights.tiles) continue;
    float total[kRowTiles][4];
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) total[i / 4][i % 4] = sum[i];
    if (p.weights.slices == 1 || add_slices<kRowTiles>(p, total, pass.slice, tile, lane))
      write_totals<kRowTiles>(p, total, tile, p.first_row, end_row, lane);
  }
}

template <int Warpgroups>
__global__ void __launch_bounds__(Warpgroups * 128 + 32, 1)
    wide_row_product_kernel(const __grid_constant__ RowProduct p, const __grid_constant__ ProductRing ring) {
  extern __shared__ __align__(128) uint8_t memory[];
  constexpr int consumers = Warpgroups * 128;
  const WideMemory m{shared_address(memory), static_cast<uint32_t>(p.weights.block_tiles) * kTileBytes, ring.groups,
                     ring.stages};
  const auto thread = static_cast<int>(threadIdx.x);
  allow_next_kernel();
  if (thread == 0) {
    for (int i = 0; i < ring.stages; ++i) {
      barrier_init(m.full(i), 1);
      barrier_init(m.empty(i), consumers / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int passes = p.weights.blocks * p.weights.slices;
  const int begin = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x));
  const int end = piece_begin(passes, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x) + 1);
  const int warp = thread / 32;
  const int lane = thread % 32;
  if (warp >= consumers / 32) {
    if (thread == consumers) copy_stages(p, m, begin, end);
  } else {
    wait_for_previous_kernels();  // the epilogue writes what earlier kernels may still read
    multiply_passes<(Warpgroups < 5)>(p, m, begin, end, warp, lane);
  }
}

template <int Warpgroups>
void launch_wide_as(const RowProduct& product, const RowProductShape& shape, cudaStream_t stream) {
  const int group_bytes_all = product.weights.block_tiles * static_cast<int>(kTileBytes) + kRowTiles * 1024;
  const int slice_groups = (product.weights.groups + product.weights.slices - 1) / product.weights.slices;
  ProductRing ring;
  ring.stages = shape.stages;
  const int most = std::max(1, shape.shared_bytes / (ring.stages * group_bytes_all));
  const int chunks = (slice_groups + most - 1) / most;
  ring.groups = (slice_groups + chunks - 1) / chunks;
  // Behind the last stage there is room for a group, since a lane reads the weights of the group after the last one.
  const size_t shared = static_cast<size_t>(ring.stages) * static_cast<size_t>(ring.groups * group_bytes_all + 16) +
                        static_cast<size_t>(product.weights.block_tiles) * kTileBytes;
  static std::once_flag once;
  std::call_once(once, [] { allow_shared_memory(wide_row_product_kernel<Warpgroups>, 227 * 1024); });
  launch(wide_row_product_kernel<Warpgroups>, dim3(static_cast<unsigned>(shape.blocks)), dim3(Warpgroups * 128 + 32),
         shared, stream, product, ring);
}

}  // namespace

void launch_wide_row_product(const RowProduct& product, const RowProductShape& shape, cudaStream_t stream) {
  const int tiles = product.weights.block_tiles;
  if (tiles <= 8)
    launch_wide_as<2>(product, shape, stream);
  else if (tiles <= 12)
    launch_wide_as<3>(product, shape, stream);
  else
    launch_wide_as<5>(product, shape, stream);
}

}  // namespace tensorfold::backend::cuda
