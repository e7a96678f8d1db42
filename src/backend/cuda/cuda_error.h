// CUDA's return codes as Error. (The formatting lives in the source file: nvcc cannot read all of fmt.)
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

namespace tensorfold::backend::cuda {

[[noreturn]] void fail_with_status(cudaError_t status, const char* action);
[[noreturn]] void fail_for_memory(size_t wanted_bytes);

/// Throws Error unless `status` is success; `action` says what was tried ("copy a page to the device").
inline void cuda_check(cudaError_t status, const char* action) {
  if (status != cudaSuccess) fail_with_status(status, action);
}

}  // namespace tensorfold::backend::cuda
