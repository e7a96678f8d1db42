#include "backend/cuda/forward_kernel.cuh"

namespace tensorfold::backend::cuda {

void launch_forward_1(const ForwardArguments& arguments, int blocks, cudaStream_t stream);

void launch_forward_1(const ForwardArguments& arguments, int blocks, cudaStream_t stream) {
  launch_forward_as<1>(arguments, blocks, stream);
}

}  // namespace tensorfold::backend::cuda
