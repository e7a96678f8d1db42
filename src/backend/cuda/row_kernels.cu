#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/checkpoint_values.cuh"
#include "backend/cuda/device_plan.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/row_kernels.h"
#include "backend/cuda/row_values.cuh"
#include "backend/cuda/scaled_rows.cuh"

namespace tensorfold::backend::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void embed_kernel(PlanView plan, EmbeddingTable table, float scale, Activation output) {
  allow_next_kernel();
  const auto row = static_cast<int>(blockIdx.x);
  const bool exists = row < plan.header().rows;
  const int token = exists ? plan.tokens()[row] : 0;
  wait_for_previous_kernels();
  if (!exists) return;
  for (int i = static_cast<int>(threadIdx.x); i < table.source.inputs; i += kThreads) {
    const bool known = token >= 0 && token < table.vocabulary;
    const float value = known ? __bfloat162float(weight_at(table.source, token, i)) : 0.0F;
    output.set(row, i, value * scale);
  }
}

/// Sum over the block's 256 threads in a fixed tree; every thread gets it.
__device__ float block_sum(float value) {
  __shared__ float warps[kThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFU, value, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = warps[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) sum += warps[i];
  return sum;
}

/// Thread t takes values 4t..4t+3, 4t+1024.., in order; then the fixed tree. Widths are multiples of 4.
__global__ void rms_norm_kernel(PlanView plan, int logit_rows, Activation input, const float* weight, float epsilon,
                                Activation output) {
  allow_next_kernel();
  const auto row = static_cast<int>(blockIdx.x);
  const bool exists = row < (logit_rows != 0 ? plan.header().logit_rows : plan.header().rows);
  const int from = logit_rows != 0 && exists ? plan.logit_rows()[row] : row;
  const auto width = static_cast<int>(input.width);
  const int first = static_cast<int>(threadIdx.x) * 4;
  constexpr int most_steps = 6;  // values kept in registers: 6 * 1,024; those beyond are read twice
  float4 gains[most_steps];
#pragma unroll
  for (int step = 0; step < most_steps; ++step) {
    const int at = first + step * kThreads * 4;
    if (at < width) gains[step] = *reinterpret_cast<const float4*>(weight + at);
  }
  wait_for_previous_kernels();
  if (!exists) return;
  float4 kept[most_steps];
  float sum = 0.0F;
#pragma unroll
  for (int step = 0; step < most_steps; ++step) {
    const int at = first + step * kThreads * 4;
    kept[step] = at < width ? get_four(input, from, at) : float4{0.0F, 0.0F, 0.0F, 0.0F};
  }
#pragma unroll
  for (int step = 0; step < most_steps; ++step) {
    sum = fmaf(kept[step].x, kept[step].x, sum);
    sum = fmaf(kept[step].y, kept[step].y, sum);
    sum = fmaf(kept[step].z, kept[step].z, sum);
    sum = fmaf(kept[step].w, kept[step].w, sum);
  }
  for (int at = most_steps * kThreads * 4 + static_cast<int>(threadIdx.x); at < width; at += kThreads) {
    const float value = input.get(from, at);
    sum = fmaf(value, value, sum);
  }
  const float scale = rsqrtf(block_sum(sum) / static_cast<float>(width) + epsilon);
#pragma unroll
  for (int step = 0; step < most_steps; ++step) {
    const int at = first + step * kThreads * 4;
    if (at >= width) continue;
    const float4& x = kept[step];
    const float4& g = gains[step];
    set_four(output, row, at, {x.x * scale * g.x, x.y * scale * g.y, x.z * scale * g.z, x.w * scale * g.w});
  }
  for (int at = most_steps * kThreads * 4 + static_cast<int>(threadIdx.x); at < width; at += kThreads)
    output.set(row, at, input.get(from, at) * scale * weight[at]);
}

/// A thread a sixteen; the first warp then has the row's scale.
__global__ void scaled_rows_kernel(PlanView plan, int logit_rows, Activation input, const float* gains, float epsilon,
                                   Activation output, float* scales) {
  extern __shared__ float squares[];
  allow_next_kernel();
  const auto row = static_cast<int>(blockIdx.x);
  const bool exists = row < (logit_rows != 0 ? plan.header().logit_rows : plan.header().rows);
  const int from = logit_rows != 0 && exists ? plan.logit_rows()[row] : row;
  const auto sixteens = static_cast<int>(input.width / kSquareValues);
  wait_for_previous_kernels();
  if (!exists) return;
  for (int at = static_cast<int>(threadIdx.x); at < sixteens; at += kThreads)
    squares[at] = scale_sixteen(input, from, gains, output, row, at);
  __syncthreads();
  if (threadIdx.x >= 32) return;
  float scale[1];
  row_scales_of(scale, squares, sixteens, epsilon, static_cast<int>(threadIdx.x));
  if (threadIdx.x == 0) scales[row] = scale[0];
}

__global__ void copy_kernel(PlanView plan, int logit_rows, Activation input, Activation output) {
  allow_next_kernel();
  const auto row = static_cast<int>(blockIdx.x);
  const bool exists = row < (logit_rows != 0 ? plan.header().logit_rows : plan.header().rows);
  const int from = logit_rows != 0 && exists ? plan.logit_rows()[row] : row;
  wait_for_previous_kernels();
  if (!exists) return;
  for (int i = static_cast<int>(threadIdx.x); i < input.width; i += kThreads) output.set(row, i, input.get(from, i));
}

__global__ void gather_kernel(const int32_t* rows, Activation input, Activation output, int first) {
  allow_next_kernel();
  wait_for_previous_kernels();
  const auto row = static_cast<int>(blockIdx.x);
  const int from = rows[row];
  for (int i = static_cast<int>(threadIdx.x); i < input.width; i += kThreads)
    output.set(first + row, i, input.get(from, i));
}

__global__ void read_rows_kernel(Activation tensor, int64_t first, float* values) {
  for (int64_t i = threadIdx.x; i < tensor.width; i += kThreads)
    values[blockIdx.x * tensor.width + i] = tensor.get(first + blockIdx.x, i);
}

__global__ void write_rows_kernel(Activation tensor, int64_t first, const float* values) {
  for (int64_t i = threadIdx.x; i < tensor.width; i += kThreads)
    tensor.set(first + blockIdx.x, i, values[blockIdx.x * tensor.width + i]);
}

__global__ void block_convolution_kernel(PlanView plan, BlockConvolutionArguments a) {
  allow_next_kernel();
  wait_for_previous_kernels();
  const auto row = static_cast<int>(blockIdx.x);
  if (row >= plan.header().rows) return;
  const int parent = plan.parents()[row];
  for (int c = static_cast<int>(threadIdx.x); c < a.input.width; c += kThreads) convolve_block_value(a, row, parent, c);
}

dim3 grid_of(int64_t rows) { return dim3(static_cast<unsigned>(rows)); }

}  // namespace

void launch_embed(const int32_t* plan, int rows, const EmbeddingTable& table, float scale, Activation output,
                  cudaStream_t stream) {
  launch(embed_kernel, grid_of(rows), dim3(kThreads), 0, stream, PlanView{plan}, table, scale, output);
}

void launch_rms_norm(const int32_t* plan, int rows, bool logit_rows, Activation input, const float* weight,
                     float epsilon, Activation output, cudaStream_t stream) {
  launch(rms_norm_kernel, grid_of(rows), dim3(kThreads), 0, stream, PlanView{plan}, logit_rows ? 1 : 0, input, weight,
         epsilon, output);
}

void launch_scaled_rows(const int32_t* plan, int rows, bool logit_rows, Activation input, const float* gains,
                        float epsilon, Activation output, float* scales, cudaStream_t stream) {
  const size_t shared = static_cast<size_t>(input.width) / kSquareValues * sizeof(float);
  launch(scaled_rows_kernel, grid_of(rows), dim3(kThreads), shared, stream, PlanView{plan}, logit_rows ? 1 : 0, input,
         gains, epsilon, output, scales);
}

void launch_copy(const int32_t* plan, int rows, bool logit_rows, Activation input, Activation output,
                 cudaStream_t stream) {
  launch(copy_kernel, grid_of(rows), dim3(kThreads), 0, stream, PlanView{plan}, logit_rows ? 1 : 0, input, output);
}

void launch_gather(const int32_t* rows, int count, Activation input, Activation output, int first,
                   cudaStream_t stream) {
  if (count > 0) launch(gather_kernel, grid_of(count), dim3(kThreads), 0, stream, rows, input, output, first);
}

void launch_read_rows(Activation tensor, int64_t first, int64_t count, float* values, cudaStream_t stream) {
  if (count > 0) read_rows_kernel<<<grid_of(count), kThreads, 0, stream>>>(tensor, first, values);
  cuda_check(cudaGetLastError(), "read rows");
}

void launch_write_rows(Activation tensor, int64_t first, int64_t count, const float* values, cudaStream_t stream) {
  if (count > 0) write_rows_kernel<<<grid_of(count), kThreads, 0, stream>>>(tensor, first, values);
  cuda_check(cudaGetLastError(), "write rows");
}

void launch_block_convolution(const int32_t* plan, int rows, const BlockConvolutionArguments& arguments,
                              cudaStream_t stream) {
  launch(block_convolution_kernel, grid_of(rows), dim3(kThreads), 0, stream, PlanView{plan}, arguments);
}

}  // namespace tensorfold::backend::cuda
