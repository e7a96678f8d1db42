// The kernel behind launch_forward.
#pragma once

#include "backend/cuda/attention_head.cuh"
#include "backend/cuda/attention_merge.cuh"
#include "backend/cuda/attention_rows.cuh"
#include "backend/cuda/checkpoint_values.cuh"
#include "backend/cuda/forward_delta.cuh"
#include "backend/cuda/forward_product.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/row_values.cuh"

namespace tensorfold::backend::cuda {

inline __device__ __noinline__ void run_embed(int index) {
  const PlanView plan = forward_plan();
  const auto& work = operation_work<EmbedWork>(index);
  wait_for_phase(index);
  const int width = work.table.source.inputs;
  const int rows = plan.header().rows;
  for (int i = grid_thread(); i < rows * width; i += grid_threads()) {
    const int row = i / width;
    const int token = plan.tokens()[row];
    const bool known = token >= 0 && token < work.table.vocabulary;
    const float value = known ? __bfloat162float(weight_at(work.table.source, token, i % width)) : 0.0F;
    work.output.set(row, i % width, value * work.scale);
  }
}

constexpr int kNormThreads = 256;
constexpr int kNormSteps = kMostNormWidth / (kNormThreads * 4);

/// A thread block a row: thread t has values 4t.., 4t + 1024.., in order; then the fixed tree of rms_norm_kernel.
inline __device__ __noinline__ void run_norm(int index) {
  const auto& work = operation_work<NormWork>(index);
  const PlanView plan = forward_plan();
  const int rows = work.logit_rows != 0 ? plan.header().logit_rows : plan.header().rows;
  const int thread = static_cast<int>(threadIdx.x);
  auto* sums = reinterpret_cast<float*>(forward_memory());
  wait_for_phase(index);
  if (thread >= kNormThreads) return;
#pragma unroll 1
  for (int row = static_cast<int>(blockIdx.x); row < rows; row += static_cast<int>(gridDim.x)) {
    const int from = work.logit_rows != 0 ? plan.logit_rows()[row] : row;
    float4 kept[kNormSteps];
    float sum = 0.0F;
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      const int at = (thread + step * kNormThreads) * 4;
      kept[step] = at < work.input.width ? get_four(work.input, from, at) : float4{};
    }
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      sum = fmaf(kept[step].x, kept[step].x, sum);
      sum = fmaf(kept[step].y, kept[step].y, sum);
      sum = fmaf(kept[step].z, kept[step].z, sum);
      sum = fmaf(kept[step].w, kept[step].w, sum);
    }
    sum = warp_sum(sum);
    if (thread % 32 == 0) sums[thread / 32] = sum;
    named_sync<3, kNormThreads>();
    sum = sums[0];
#pragma unroll
    for (int i = 1; i < kNormThreads / 32; ++i) sum += sums[i];
    const float scale = rsqrtf(sum / static_cast<float>(work.input.width) + work.epsilon);
#pragma unroll
    for (int step = 0; step < kNormSteps; ++step) {
      const int at = (thread + step * kNormThreads) * 4;
      if (at >= work.input.width) continue;
      const float4& x = kept[step];
      const float4 g = *reinterpret_cast<const float4*>(work.weight + at);
      set_four(work.output, row, at, {x.x * scale * g.x, x.y * scale * g.y, x.z * scale * g.z, x.w * scale * g.w});
    }
    named_sync<3, kNormThreads>();
  }
}

/// A thread a sixteen.
inline __device__ __noinline__ void run_scaled_rows(int index) {
  const auto& work = operation_work<ScaledRowsWork>(index);
  const PlanView plan = forward_plan();
  wait_for_phase(index);
  const int rows = work.logit_rows != 0 ? plan.header().logit_rows : plan.header().rows;
  const auto sixteens = static_cast<int>(work.input.width / kSquareValues);
#pragma unroll 1
  for (int i = grid_thread(); i < rows * sixteens; i += grid_threads()) {
    const int row = i / sixteens;
    const int from = work.logit_rows != 0 ? plan.logit_rows()[row] : row;
    work.squares[i] = scale_sixteen(work.input, from, work.gains, work.output, row, i % sixteens);
  }
}

inline __device__ __noinline__ void run_copy(int index) {
  const PlanView plan = forward_plan();
  const auto& work = operation_work<CopyWork>(index);
  wait_for_phase(index);
  const int rows = work.logit_rows != 0 ? plan.header().logit_rows : plan.header().rows;
  const auto width = static_cast<int>(work.input.width);
  for (int i = grid_thread(); i < rows * width; i += grid_threads()) {
    const int row = i / width;
    const int from = work.logit_rows != 0 ? plan.logit_rows()[row] : row;
    work.output.set(row, i % width, work.input.get(from, i % width));
  }
}

inline __device__ __noinline__ void run_prepare(int index) {
  const PlanView plan = forward_plan();
  const auto& a = operation_work<AttentionArguments>(index);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int heads = (a.query.data != nullptr ? a.heads : 0) + 2 * a.kv_heads;
  const int tasks = plan.header().rows * heads;
  float* values = reinterpret_cast<float*>(forward_memory()) + warp * 2 * kMostHeadDim;
  wait_for_phase(index);
  for (int task = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x); task < tasks;
       task += kConsumerWarps * static_cast<int>(gridDim.x)) {
    prepare_head(plan, a, task / heads, task % heads, values, lane);
    __syncwarp();
  }
}

__device__ inline RingPlaces run_partials(int index, RingPlaces places) {
  if (operation_work<AttentionArguments>(index).head_dim == 256)
    places.stage = attend_units<256>(index, places.stage);
  else
    places.stage = attend_units<128>(index, places.stage);
  return places;
}

inline __device__ __noinline__ void run_block_convolution(int index) {
  const PlanView plan = forward_plan();
  const auto& a = operation_work<BlockConvolutionArguments>(index);
  wait_for_phase(index);
  const auto channels = static_cast<int>(a.input.width);
  const int rows = plan.header().rows;
  for (int i = grid_thread(); i < rows * channels; i += grid_threads())
    convolve_block_value(a, i / channels, plan.parents()[i / channels], i % channels);
}

template <int RowTiles>
__device__ inline uint32_t run_product(int index, uint32_t places) {
  wait_for_phase(index);
  if (operation_work<ProductWork>(index).product.weights.format == WeightFormat::affine4)
    return multiply_passes<WeightFormat::affine4, RowTiles>(index, places);
  return multiply_passes<WeightFormat::dense, RowTiles>(index, places);
}

/// The next operation's description comes while this one runs.
__device__ inline void fetch_operation(int index) {
  constexpr int pieces = static_cast<int>(sizeof(Operation)) / 16;
  const ForwardArguments& a = forward_arguments();
  if (index >= a.operation_count || threadIdx.x >= pieces) return;
  const auto* from = reinterpret_cast<const uint8_t*>(a.operations + index) + threadIdx.x * 16;
  copy_or_clear(shared_address(&operation_slot(index)) + threadIdx.x * 16, from, true);
  commit_copies();
}

/// The computing threads' way through the list.
template <int RowTiles>
__device__ inline void run_operations() {
  uint32_t places = 0;  // of the two rings, packed
  fetch_operation(0);
  wait_copies<0>();
  consumers_sync();
  const int count = forward_arguments().operation_count;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    fetch_operation(i + 1);
    switch (operation_slot(i).kind) {
      case OperationKind::embed:
        run_embed(i);
        break;
      case OperationKind::norm:
        run_norm(i);
        break;
      case OperationKind::copy:
        run_copy(i);
        break;
      case OperationKind::product:
        places = run_product<RowTiles>(i, places);
        break;
      case OperationKind::delta:
        run_gated_delta(i);
        break;
      case OperationKind::tails:
        run_tails(i);
        break;
      case OperationKind::prepare:
        run_prepare(i);
        break;
      case OperationKind::partials:
        places = packed_places(run_partials(i, unpacked_places(places)));
        break;
      case OperationKind::merge:
        run_merge(i);
        break;
      case OperationKind::block_convolution:
        run_block_convolution(i);
        break;
      case OperationKind::scaled_rows:
        run_scaled_rows(i);
        break;
    }
    wait_copies<0>();
    const bool ends_phase = operation_slot(i).ends_phase != 0;  // the next fetch overwrites it
    consumers_sync();
    stamp(i, 1);
    if (ends_phase && threadIdx.x == 0) {
      // The barrier above gathers the block's writes. Whoever reads them with the copy engine has the proxies' fence.
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(forward_arguments().arrivals) : "memory");
    }
  }
}

template <int RowTiles>
__global__ void __launch_bounds__(kForwardThreads, 1) forward_kernel(const __grid_constant__ ForwardArguments a) {
  const Ring ring{shared_address(forward_memory())};
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages + kPieces; ++i) {  // the stages' barriers, then the pieces'
      barrier_init(ring.stage_full(i), 1);
      barrier_init(ring.stage_empty(i), kConsumerWarps);
    }
    barrier_init(ring.scales_made(), 1);
    barrier_init_fence();
    for (int i = 0; i < 2; ++i) row_counts()[i] = a.plan[i];
    *reinterpret_cast<ForwardArguments*>(forward_memory() + kArgumentsAt) = a;
  }
  __syncthreads();
  if (warp == kConsumerWarps) {
    const auto stream_attention = [&](int operation, RingPlace<kStages> place) {
      return stream_keys(a.plan, *reinterpret_cast<const AttentionArguments*>(a.operations[operation].work), ring,
                         place);
    };
    if (lane == 0) stream_weights(a, ring, stream_attention);
  } else if (warp == kConsumerWarps + 1) {
    if (lane == 0) stream_rows<RowTiles>(a, ring);
  } else {
    run_operations<RowTiles>();
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
