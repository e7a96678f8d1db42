#include <cuda_runtime.h>

#include "backend/cuda/kernel_probe.h"

namespace tensorfold::backend::cuda {
namespace {

__global__ void probe_kernel() {}

}  // namespace

bool has_kernels() {
  cudaFuncAttributes attributes{};
  const bool found = cudaFuncGetAttributes(&attributes, probe_kernel) == cudaSuccess;
  if (!found) static_cast<void>(cudaGetLastError());
  return found;
}

}  // namespace tensorfold::backend::cuda
