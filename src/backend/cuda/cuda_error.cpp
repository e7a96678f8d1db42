#include "backend/cuda/cuda_error.h"

#include "base/error.h"

namespace tensorfold::backend::cuda {

void fail_with_status(cudaError_t status, const char* action) {
  const ErrorKind kind = status == cudaErrorMemoryAllocation ? ErrorKind::capacity : ErrorKind::internal;
  fail(kind, "CUDA could not {}: {} ({})", action, cudaGetErrorString(status), cudaGetErrorName(status));
}

void fail_for_memory(size_t wanted_bytes) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  static_cast<void>(cudaGetLastError());
  static_cast<void>(cudaMemGetInfo(&free_bytes, &total_bytes));
  fail(ErrorKind::capacity, "the GPU has no room for {:.3f} GB more ({:.2f} of {:.2f} GB are free)",
       static_cast<double>(wanted_bytes) / 1e9, static_cast<double>(free_bytes) / 1e9,
       static_cast<double>(total_bytes) / 1e9);
}

}  // namespace tensorfold::backend::cuda
