// Synthetic weights (format/synthetic_store.h) made on the device: the bytes that the host would make.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "format/synthetic_values.h"

namespace tensorfold::backend::cuda {

/// Writes bytes [offset, offset + bytes) of the tensor to `out` (device memory, aligned to 8 bytes).
void launch_synthetic(const format::SyntheticTensor& tensor, uint64_t offset, size_t bytes, std::byte* out,
                      cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
