// Launching kernels of a forward: each may start while the one before it ends (programmatic launch order), so each must
// call wait_for_previous_kernels before it touches what earlier kernels read or write.
#pragma once

#include <utility>

#include <cuda_runtime.h>

#include "backend/cuda/cuda_error.h"

namespace tensorfold::backend::cuda {

/// One division of shared memory and L1 for all kernels: a multiprocessor that changes it must first run empty.
void prefer_shared_memory(const void* kernel);

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  prefer_shared_memory(reinterpret_cast<const void*>(kernel));
  cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...),
             "launch a kernel");
}

/// Raises a kernel's shared-memory limit; call once before its first launch.
template <typename Kernel>
void allow_shared_memory(Kernel kernel, size_t bytes) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
             "raise a kernel's shared memory");
}

}  // namespace tensorfold::backend::cuda
