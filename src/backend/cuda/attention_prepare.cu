// Query and key norms, rotary embedding, the cache write; and the merge of partial results with the output gate.
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/attention_head.cuh"
#include "backend/cuda/launch.h"

namespace tensorfold::backend::cuda {
namespace {

constexpr int kWarps = 4;

__global__ void prepare_kernel(PlanView plan, const __grid_constant__ AttentionArguments a) {
  __shared__ __align__(8) float values[kWarps][2 * kMostHeadDim];
  allow_next_kernel();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x);
  const bool exists = row < plan.header().rows;
  const int heads = (a.query.data != nullptr ? a.heads : 0) + 2 * a.kv_heads;
  const int head = static_cast<int>(blockIdx.y) * kWarps + warp;
  wait_for_previous_kernels();
  if (exists && head < heads) prepare_head(plan, a, row, head, values[warp], lane);
}

__global__ void merge_kernel(PlanView plan, int first_row, const __grid_constant__ AttentionArguments a) {
  allow_next_kernel();
  const int row = first_row + static_cast<int>(blockIdx.x);
  const bool exists = row < plan.header().rows;
  const auto head = static_cast<int>(blockIdx.y);
  const auto at = static_cast<int>(threadIdx.x);
  const AttentionRow where = exists ? plan.attention_rows(a.kind)[row] : AttentionRow{};
  wait_for_previous_kernels();
  if (!exists) return;
  merge_value(a, where, row, head, at);
}

}  // namespace

void launch_attention_prepare(const int32_t* plan, int rows, const AttentionArguments& arguments, cudaStream_t stream) {
  const int heads = (arguments.query.data != nullptr ? arguments.heads : 0) + 2 * arguments.kv_heads;
  launch(prepare_kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>((heads + kWarps - 1) / kWarps)),
         dim3(kWarps * 32), 0, stream, PlanView{plan}, arguments);
}

void launch_attention_merge(const int32_t* plan, int first_row, int rows, const AttentionArguments& arguments,
                            cudaStream_t stream) {
  launch(merge_kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(arguments.heads)),
         dim3(static_cast<unsigned>(arguments.head_dim)), 0, stream, PlanView{plan}, first_row, arguments);
}

}  // namespace tensorfold::backend::cuda
