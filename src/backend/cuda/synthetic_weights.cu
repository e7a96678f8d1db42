#include "backend/cuda/cuda_error.h"
#include "backend/cuda/synthetic_weights.h"

namespace tensorfold::backend::cuda {
namespace {

/// One thread a block of 8 bytes at an absolute offset of the tensor.
__global__ void synthetic_kernel(format::SyntheticTensor tensor, uint64_t offset, uint64_t bytes, uint8_t* out) {
  const uint64_t first = offset / 8;
  const uint64_t block = first + blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x;
  const uint64_t at = block * 8;
  if (at >= offset + bytes) return;
  const uint64_t bits = format::synthetic::block_of(tensor, block);
  if (offset % 8 == 0 && at + 8 <= offset + bytes) {
    *reinterpret_cast<uint64_t*>(out + (at - offset)) = bits;
    return;
  }
  for (uint64_t i = 0; i < 8; ++i)
    if (at + i >= offset && at + i < offset + bytes) out[at + i - offset] = static_cast<uint8_t>(bits >> (8 * i));
}

}  // namespace

void launch_synthetic(const format::SyntheticTensor& tensor, uint64_t offset, size_t bytes, std::byte* out,
                      cudaStream_t stream) {
  if (bytes == 0) return;
  const uint64_t blocks = (offset % 8 + bytes + 7) / 8;
  synthetic_kernel<<<static_cast<unsigned>((blocks + 255) / 256), 256, 0, stream>>>(tensor, offset, bytes,
                                                                                    reinterpret_cast<uint8_t*>(out));
  cuda_check(cudaGetLastError(), "make synthetic weights");
}

}  // namespace tensorfold::backend::cuda
