// The kernel behind launch_forward.
#pragma once

#include "backend/cuda/attention_head.cuh"
#include "backend/cuda/attention_tile.cuh"
#include "backend/cuda/checkpoint_values.cuh"
#include "backend/cuda/forward_delta.cuh"
#include "backend/cuda/forward_product.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/row_values.cuh"

namespace tensorfold::backend::cuda {

template <int Id, int Threads>
__device__ inline void named_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}

/// What the computing warps carry from operation to operation.
struct Walk {
  const ForwardArguments& arguments;
  PlanView plan;
  const Operation& operation;
  uint8_t* scratch;
  int index;

  template <typename Work>
  __device__ const Work& work() const {
    return *reinterpret_cast<const Work*>(operation.work);
  }
  /// Everything of earlier phases is visible after this; all computing threads call it.
  __device__ void wait() const {
    if (operation.begins_phase == 0) {
      stamp(0);
      return;
    }
    if (threadIdx.x == 0) {
      wait_arrivals(arguments.arrivals, arguments.before + static_cast<uint32_t>(operation.phase) * gridDim.x);
      stamp(0);
    }
    consumers_sync();
  }
  __device__ void stamp(int which) const {
    if (arguments.times != nullptr && blockIdx.x < 2 && threadIdx.x == 0)
      arguments.times[(static_cast<int>(blockIdx.x) * arguments.operation_count + index) * 2 + which] = clock64();
  }
};

__device__ inline int grid_thread() { return static_cast<int>(blockIdx.x) * kConsumers + static_cast<int>(threadIdx.x); }
__device__ inline int grid_threads() { return static_cast<int>(gridDim.x) * kConsumers; }

inline __device__ __noinline__ void run_embed(const Walk& walk) {
  const auto& work = walk.work<EmbedWork>();
  walk.wait();
  const int width = work.table.source.inputs;
  const int rows = walk.plan.header().rows;
  for (int i = grid_thread(); i < rows * width; i += grid_threads()) {
    const int row = i / width;
    const int token = walk.plan.tokens()[row];
    const bool known = token >= 0 && token < work.table.vocabulary;
    const float value = known ? __bfloat162float(weight_at(work.table.source, token, i % width)) : 0.0F;
    work.output.set(row, i % width, value * work.scale);
  }
}

constexpr int kNormThreads = 256;

/// One row by 256 threads, in the order of rms_norm_kernel.
__device__ inline void norm_row(const NormWork& work, const float4 (&gains)[6], int from, int row, float* sums) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto width = static_cast<int>(work.input.width);
  const int first = thread * 4;
  float4 kept[6];
  float sum = 0.0F;
#pragma unroll
  for (int step = 0; step < 6; ++step) {
    const int at = first + step * kNormThreads * 4;
    kept[step] = at < width ? get_four(work.input, from, at) : float4{0.0F, 0.0F, 0.0F, 0.0F};
  }
#pragma unroll
  for (int step = 0; step < 6; ++step) {
    sum = fmaf(kept[step].x, kept[step].x, sum);
    sum = fmaf(kept[step].y, kept[step].y, sum);
    sum = fmaf(kept[step].z, kept[step].z, sum);
    sum = fmaf(kept[step].w, kept[step].w, sum);
  }
  for (int at = 6 * kNormThreads * 4 + thread; at < width; at += kNormThreads) {
    const float value = work.input.get(from, at);
    sum = fmaf(value, value, sum);
  }
  sum = warp_sum(sum);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  named_sync<3, kNormThreads>();
  sum = sums[0];
#pragma unroll
  for (int i = 1; i < kNormThreads / 32; ++i) sum += sums[i];
  const float scale = rsqrtf(sum / static_cast<float>(width) + work.epsilon);
#pragma unroll
  for (int step = 0; step < 6; ++step) {
    const int at = first + step * kNormThreads * 4;
    if (at >= width) continue;
    const float4& x = kept[step];
    const float4& g = gains[step];
    set_four(work.output, row, at, {x.x * scale * g.x, x.y * scale * g.y, x.z * scale * g.z, x.w * scale * g.w});
  }
  for (int at = 6 * kNormThreads * 4 + thread; at < width; at += kNormThreads)
    work.output.set(row, at, work.input.get(from, at) * scale * work.weight[at]);
  named_sync<3, kNormThreads>();
}

inline __device__ __noinline__ void run_norm(const Walk& walk) {
  const auto& work = walk.work<NormWork>();
  const int rows = work.logit_rows != 0 ? walk.plan.header().logit_rows : walk.plan.header().rows;
  const bool works = static_cast<int>(blockIdx.x) < rows && threadIdx.x < kNormThreads;
  float4 gains[6];
#pragma unroll
  for (int step = 0; step < 6; ++step) {
    const int at = static_cast<int>(threadIdx.x) * 4 + step * kNormThreads * 4;
    if (works && at < work.input.width) gains[step] = *reinterpret_cast<const float4*>(work.weight + at);
  }
  walk.wait();
  if (!works) return;
  for (int row = static_cast<int>(blockIdx.x); row < rows; row += static_cast<int>(gridDim.x))
    norm_row(work, gains, work.logit_rows != 0 ? walk.plan.logit_rows()[row] : row, row,
             reinterpret_cast<float*>(walk.scratch));
}

inline __device__ __noinline__ void run_copy(const Walk& walk) {
  const auto& work = walk.work<CopyWork>();
  walk.wait();
  const int rows = work.logit_rows != 0 ? walk.plan.header().logit_rows : walk.plan.header().rows;
  const auto width = static_cast<int>(work.input.width);
  for (int i = grid_thread(); i < rows * width; i += grid_threads()) {
    const int row = i / width;
    const int from = work.logit_rows != 0 ? walk.plan.logit_rows()[row] : row;
    work.output.set(row, i % width, work.input.get(from, i % width));
  }
}

inline __device__ __noinline__ void run_tails(const Walk& walk) {
  const auto& a = walk.work<GatedDeltaArguments>();
  walk.wait();
  const auto channels = static_cast<int>(channels_of(a.shape));
  const int all = walk.plan.header().sequences * channels;
  // From the last thread block down: a norm beside this begins at the first.
  for (int i = grid_threads() - 1 - grid_thread(); i < all; i += grid_threads()) {
    const DeviceSequence sequence = walk.plan.sequences()[i / channels];
    if (sequence.keep_all != 0) move_tail(a, sequence, i % channels);
  }
}

inline __device__ __noinline__ void run_gated_delta(const Walk& walk) {
  run_delta(walk.plan, walk.work<GatedDeltaArguments>(), walk.scratch, [&] { walk.wait(); });
}

inline __device__ __noinline__ void run_prepare(const Walk& walk) {
  const auto& a = walk.work<AttentionArguments>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int queries = a.query.data != nullptr ? a.heads : 0;
  const int heads = queries + 2 * a.kv_heads;
  const int tasks = walk.plan.header().rows * heads;
  float* values = reinterpret_cast<float*>(walk.scratch) + warp * kMostHeadDim;
  walk.wait();
  for (int task = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x); task < tasks;
       task += kConsumerWarps * static_cast<int>(gridDim.x)) {
    const int row = task / heads;
    const int head = task % heads;
    const int position = walk.plan.positions()[row];
    if (head < queries) {
      write_head(a, a.query, row, head * a.head_dim * (a.gated != 0 ? 2 : 1), a.query_norm, position, values,
                 a.queries + (static_cast<int64_t>(row) * a.heads + head) * a.head_dim, lane);
    } else {
      uint16_t* to = key_row(walk.plan, a, row) + static_cast<int64_t>(head - queries) * a.head_dim;
      const int kv_head = (head - queries) % a.kv_heads;
      if (head - queries < a.kv_heads) {
        write_head(a, a.key, row, kv_head * a.head_dim, a.key_norm, position, values, to, lane);
      } else {
        for (int i = lane; i < a.head_dim; i += 32)
          to[i] = __bfloat16_as_ushort(__float2bfloat16_rn(a.value.get(row, kv_head * a.head_dim + i)));
      }
    }
    __syncwarp();
  }
}

template <int HeadDim>
__device__ inline void run_partials_of(const Walk& walk, const AttentionArguments& a) {
  static_assert(Layout<HeadDim, 1>::bytes <= kScratchBytes);
  walk.wait();
  if (threadIdx.x >= kAttentionThreads) return;
  const int group = a.heads / a.kv_heads;
  const int block_rows = min(walk.plan.header().longest_sequence, max(1, kAttentionItems / group));
  const int tiles = (block_rows * group + 15) / 16;
  const int units = walk.plan.header().attention[a.kind].items * a.kv_heads * tiles;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    const int item = unit / (a.kv_heads * tiles);
    const int tile = unit % tiles;
    if (tile * 16 >= walk.plan.items(a.kind)[item].rows * group) continue;
    attend_unit<HeadDim, 1>(
        walk.plan, a, item, unit / tiles % a.kv_heads, tile * 16, walk.scratch, [] {},
        [] { named_sync<2, kAttentionThreads>(); });
  }
}

inline __device__ __noinline__ void run_partials(const Walk& walk) {
  const auto& a = walk.work<AttentionArguments>();
  if (a.head_dim == 256)
    run_partials_of<256>(walk, a);
  else
    run_partials_of<128>(walk, a);
}

inline __device__ __noinline__ void run_merge(const Walk& walk) {
  const auto& a = walk.work<AttentionArguments>();
  walk.wait();
  const int team = static_cast<int>(threadIdx.x) / a.head_dim;
  const int teams = kConsumers / a.head_dim;
  if (team >= teams) return;
  const int units = walk.plan.header().rows * a.heads;
  for (int unit = static_cast<int>(blockIdx.x + gridDim.x * static_cast<unsigned>(team)); unit < units;
       unit += static_cast<int>(gridDim.x) * teams) {
    const int row = unit / a.heads;
    merge_value(a, walk.plan.attention_rows(a.kind)[row], row, unit % a.heads,
                static_cast<int>(threadIdx.x) % a.head_dim);
  }
}

inline __device__ __noinline__ void run_block_convolution(const Walk& walk) {
  const auto& a = walk.work<BlockConvolutionArguments>();
  walk.wait();
  const auto channels = static_cast<int>(a.input.width);
  const int rows = walk.plan.header().rows;
  for (int i = grid_thread(); i < rows * channels; i += grid_threads())
    convolve_block_value(a, i / channels, walk.plan.parents()[i / channels], i % channels);
}

template <int RowTiles>
inline __device__ __noinline__ RingPlaces run_product(const Walk& walk, Ring ring, RingPlaces places) {
  const auto& work = walk.work<ProductWork>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  walk.wait();
  if (threadIdx.x == 0) announce_rows(ring, walk.operation.phase);
  if (work.product.weights.format == WeightFormat::affine4)
    multiply_passes<WeightFormat::affine4, RowTiles>(work, ring, places, walk.scratch, warp, lane);
  else
    multiply_passes<WeightFormat::dense, RowTiles>(work, ring, places, walk.scratch, warp, lane);
  return places;
}

/// The next operation's description comes while this one runs.
__device__ inline void fetch_operation(const ForwardArguments& a, Operation* slots, int index) {
  constexpr int pieces = static_cast<int>(sizeof(Operation)) / 16;
  if (index >= a.operation_count || threadIdx.x >= pieces) return;
  const auto* from = reinterpret_cast<const uint8_t*>(a.operations + index) + threadIdx.x * 16;
  copy_or_clear(shared_address(slots + index % 2) + threadIdx.x * 16, from, true);
  commit_copies();
}

template <int RowTiles>
__device__ inline void run_operations(const ForwardArguments& a, const Ring& ring, uint8_t* memory) {
  auto* slots = reinterpret_cast<Operation*>(memory + kOperationsAt);
  RingPlaces places;
  fetch_operation(a, slots, 0);
  wait_copies<0>();
  consumers_sync();
  for (int i = 0; i < a.operation_count; ++i) {
    const Walk walk{a, PlanView{a.plan}, slots[i % 2], memory, i};
    fetch_operation(a, slots, i + 1);
    switch (walk.operation.kind) {
      case OperationKind::embed:
        run_embed(walk);
        break;
      case OperationKind::norm:
        run_norm(walk);
        break;
      case OperationKind::copy:
        run_copy(walk);
        break;
      case OperationKind::product:
        places = run_product<RowTiles>(walk, ring, places);
        break;
      case OperationKind::delta:
        run_gated_delta(walk);
        break;
      case OperationKind::tails:
        run_tails(walk);
        break;
      case OperationKind::prepare:
        run_prepare(walk);
        break;
      case OperationKind::partials:
        run_partials(walk);
        break;
      case OperationKind::merge:
        run_merge(walk);
        break;
      case OperationKind::block_convolution:
        run_block_convolution(walk);
        break;
    }
    wait_copies<0>();
    consumers_sync();
    walk.stamp(1);
    if (walk.operation.ends_phase != 0 && threadIdx.x == 0) {
      // The barrier above gathers the block's writes; the next phase may read them with the copy engine.
      proxy_fence();
      asm volatile("fence.acq_rel.gpu;" ::: "memory");
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.arrivals) : "memory");
    }
  }
}

template <int RowTiles>
__global__ void __launch_bounds__(kForwardThreads, 1) forward_kernel(const __grid_constant__ ForwardArguments a) {
  extern __shared__ __align__(128) uint8_t memory[];
  const Ring ring{shared_address(memory)};
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages + kPieces; ++i) {  // the stages' barriers, then the pieces'
      barrier_init(ring.stage_full(i), 1);
      barrier_init(ring.stage_empty(i), kConsumerWarps);
    }
    *reinterpret_cast<int32_t*>(memory + kBegunAt) = 0;
    barrier_init_fence();
  }
  __syncthreads();
  if (warp == kConsumerWarps) {
    if (lane == 0) stream_weights(a, ring);
  } else if (warp == kConsumerWarps + 1) {
    if (lane == 0) stream_rows<RowTiles>(a, ring);
  } else {
    run_operations<RowTiles>(a, ring, memory);
  }
}

/// Host side of one width.
template <int RowTiles>
void launch_forward_as(const ForwardArguments& arguments, int blocks, cudaStream_t stream) {
  static const bool allowed = [] {
    allow_shared_memory(forward_kernel<RowTiles>, kForwardShared);
    return true;
  }();
  static_cast<void>(allowed);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kForwardThreads);
  config.dynamicSmemBytes = kForwardShared;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;  // all blocks run together, or the launch fails
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, forward_kernel<RowTiles>, arguments), "launch a forward");
}

}  // namespace tensorfold::backend::cuda
