#include <mutex>

#include "backend/cuda/attention_tile.cuh"
#include "backend/cuda/launch.h"

namespace tensorfold::backend::cuda {
namespace {

template <int HeadDim, int ItemTiles>
__global__ void __launch_bounds__(kAttentionThreads)
    partials_kernel(PlanView plan, int first_item, const __grid_constant__ AttentionArguments a) {
  extern __shared__ __align__(128) uint8_t memory[];
  allow_next_kernel();
  const int index = first_item + static_cast<int>(blockIdx.x);
  if (index >= plan.header().attention[a.kind].items) {
    wait_for_previous_kernels();
    return;
  }
  attend_unit<HeadDim, ItemTiles>(
      plan, a, index, static_cast<int>(blockIdx.y), 0, memory, [] { wait_for_previous_kernels(); },
      [] { __syncthreads(); });
}

template <int HeadDim, int ItemTiles>
void launch_as(const int32_t* plan, int first_item, int items, const AttentionArguments& arguments,
               cudaStream_t stream) {
  constexpr size_t shared = Layout<HeadDim, ItemTiles>::bytes;
  static std::once_flag once;
  std::call_once(once, [] { allow_shared_memory(partials_kernel<HeadDim, ItemTiles>, shared); });
  launch(partials_kernel<HeadDim, ItemTiles>,
         dim3(static_cast<unsigned>(items), static_cast<unsigned>(arguments.kv_heads)), dim3(kAttentionThreads), shared,
         stream, PlanView{plan}, first_item, arguments);
}

template <int HeadDim>
void launch_for(const int32_t* plan, int first_item, int items, int pairs, const AttentionArguments& arguments,
                cudaStream_t stream) {
  if (pairs <= 16)
    launch_as<HeadDim, 1>(plan, first_item, items, arguments, stream);
  else
    launch_as<HeadDim, 4>(plan, first_item, items, arguments, stream);
}

}  // namespace

bool attention_supports(int head_dim) { return head_dim == 128 || head_dim == 256; }

void launch_attention_partials(const int32_t* plan, int first_item, int items, int block_rows,
                               const AttentionArguments& arguments, cudaStream_t stream) {
  const int pairs = block_rows * (arguments.heads / arguments.kv_heads);
  if (arguments.head_dim == 256)
    launch_for<256>(plan, first_item, items, pairs, arguments, stream);
  else
    launch_for<128>(plan, first_item, items, pairs, arguments, stream);
}

}  // namespace tensorfold::backend::cuda
