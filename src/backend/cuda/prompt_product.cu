#include <mutex>

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/matrix_unit.cuh"
#include "backend/cuda/product_outputs.cuh"
#include "backend/cuda/prompt_product.h"

namespace tensorfold::backend::cuda {
namespace {

constexpr int kWarps = 8;  // two warpgroups; each warp owns a tile of 16 outputs
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 4;

template <WeightFormat Format, int RowTiles>
constexpr int kStageBytes = RowTiles * 1024 + kWarps * group_bytes(Format);

/// d (64 outputs x 128 rows) = or += a (64 x 16, registers) b (16 x 128, shared memory).
__device__ inline void warpgroup_step(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
      "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

/// d (64 outputs x 64 rows) = or += a (64 x 16, registers) b (16 x 64, shared memory).
__device__ inline void warpgroup_step(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
      "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

__device__ inline void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Values>
__device__ inline void warpgroup_wait(float (&d)[Values]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < Values; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// 8x8 blocks of 128 bytes: the next 8 inputs 128 bytes on, the next 8 rows 1,024 bytes on; no swizzle.
__device__ inline uint64_t rows_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFFU) >> 4) | (static_cast<uint64_t>(128 >> 4) << 16) |
         (static_cast<uint64_t>(1024 >> 4) << 32);
}

__device__ inline void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

template <WeightFormat Format>
__device__ inline const uint8_t* tile_at(const PackedWeights& w, int tile, int group) {
  if (tile >= w.blocks * w.block_tiles) tile = 0;  // past the end: anything
  const int64_t block = tile / w.block_tiles;
  return w.data + ((block * w.groups + group) * w.block_tiles + tile % w.block_tiles) * group_bytes(Format);
}

/// What a thread copies of every group: pieces of 16 bytes of rows and of weights.
template <WeightFormat Format, int RowTiles>
struct Copies {
  static constexpr int row_pieces = RowTiles * 64 / kThreads;
  static constexpr int weight_chunks = kWarps * group_bytes(Format) / 16;
  static constexpr int weight_pieces = (weight_chunks + kThreads - 1) / kThreads;
  const uint8_t* rows[row_pieces];
  const uint8_t* weights[weight_pieces];
  int64_t weight_step;

  __device__ Copies(const RowProduct& p, int first_tile, int first_row_tile, int thread) {
    constexpr int chunks = group_bytes(Format) / 16;
#pragma unroll
    for (int i = 0; i < row_pieces; ++i) {
      const int chunk = i * kThreads + thread;
      rows[i] = p.input.group_at(first_row_tile + chunk / 64, 0) + (chunk % 64) * 16;
    }
#pragma unroll
    for (int i = 0; i < weight_pieces; ++i) {
      const int chunk = i * kThreads + thread;
      weights[i] = tile_at<Format>(p.weights, first_tile + chunk / chunks, 0) + (chunk % chunks) * 16;
    }
    weight_step = static_cast<int64_t>(p.weights.block_tiles) * group_bytes(Format);
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
template <WeightFormat Format>
__device__ inline void load_fragments(uint32_t (&a)[4][4], const uint8_t* weights, int lane) {
  if constexpr (Format == WeightFormat::affine4) {
    const uint4 words = *reinterpret_cast<const uint4*>(weights + lane * 16);
    const uint2 pairs = *reinterpret_cast<const uint2*>(weights + 512 + (lane / 4) * 8);
    const AffineScales scales(pairs);
    affine_fragment(a[0], words.x, scales);
    affine_fragment(a[1], words.y, scales);
    affine_fragment(a[2], words.z, scales);
    affine_fragment(a[3], words.w, scales);
  } else {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint4 words = *reinterpret_cast<const uint4*>(weights + step * 512 + lane * 16);
      a[step][0] = words.x;
      a[step][1] = words.y;
      a[step][2] = words.z;
      a[step][3] = words.w;
    }
  }
}

/// RowTiles 16 for matrices of one slice; 8 where `Sliced`, whose totals take registers too.
template <WeightFormat Format, int RowTiles, bool Sliced>
__global__ void __launch_bounds__(kThreads, 2)
    prompt_product_kernel(const __grid_constant__ RowProduct p, int end_row) {
  extern __shared__ __align__(128) uint8_t memory[];
  allow_next_kernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int first_row = p.first_row + static_cast<int>(blockIdx.x) * RowTiles * 8;
  const int first_tile = static_cast<int>(blockIdx.y) * kWarps;
  const uint32_t base = shared_address(memory);
  const int groups = p.weights.groups;
  Copies<Format, RowTiles> copies(p, first_tile, first_row / 8, thread);
  wait_for_previous_kernels();
  const auto load = [&](int group) {
    if (group < groups)
      copies.load(base + static_cast<uint32_t>((group % kStages) * kStageBytes<Format, RowTiles>), thread);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float sum[RowTiles * 4];
  float total[Sliced ? RowTiles * 4 : 1];
  const auto stage_of = [&](int group) {
    return static_cast<uint32_t>((group % kStages) * kStageBytes<Format, RowTiles>);
  };
  const auto fragments_of = [&](uint32_t(&a)[4][4], int group) {
    load_fragments<Format>(a, memory + stage_of(group) + RowTiles * 1024 + warp * group_bytes(Format), lane);
  };
  // While the tensor cores multiply a group, the next one's fragments are made and the one after it is loaded.
  load(0);
  load(1);
  int slice = 0;
  int slice_end = slice_begin(groups, p.weights.slices, 1);
  int accumulate = 0;
  const auto arrive = [] {  // the oldest load, everywhere in the block
    asm volatile("cp.async.wait_group 1;" ::: "memory");
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
    warpgroup_wait(sum);
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

template <WeightFormat Format, int RowTiles, bool Sliced>
void launch_as(const RowProduct& product, int rows, cudaStream_t stream) {
  constexpr size_t shared = static_cast<size_t>(kStages) * kStageBytes<Format, RowTiles>;
  static std::once_flag once;
  std::call_once(once, [] { allow_shared_memory(prompt_product_kernel<Format, RowTiles, Sliced>, shared); });
  const dim3 grid(static_cast<unsigned>((rows + RowTiles * 8 - 1) / (RowTiles * 8)),
                  static_cast<unsigned>((product.weights.tiles + kWarps - 1) / kWarps));
  launch(prompt_product_kernel<Format, RowTiles, Sliced>, grid, dim3(kThreads), shared, stream, product,
         product.first_row + rows);
}

template <WeightFormat Format>
void launch_for(const RowProduct& product, int rows, cudaStream_t stream) {
  if (product.weights.slices == 1)
    launch_as<Format, 16, false>(product, rows, stream);
  else
    launch_as<Format, 8, true>(product, rows, stream);
}

}  // namespace

void launch_prompt_product(const RowProduct& product, int rows, cudaStream_t stream) {
  if (product.weights.format == WeightFormat::affine4)
    launch_for<WeightFormat::affine4>(product, rows, stream);
  else
    launch_for<WeightFormat::dense>(product, rows, stream);
}

}  // namespace tensorfold::backend::cuda
