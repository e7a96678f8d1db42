#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/key_pages.h"
#include "backend/cuda/key_place.cuh"
#include "backend/cuda/launch.h"

namespace tensorfold::backend::cuda {
namespace {

__global__ void keep_keys_kernel(const KeptKey* kept, int page_tokens, const PagedLayer* layers) {
  allow_next_kernel();
  wait_for_previous_kernels();
  const KeptKey key = kept[blockIdx.x];
  const PagedLayer layer = layers[blockIdx.y];
  const KeyPlace from = record_place(layer.window, key.record, layer.width);
  const KeyPlace to = page_place(layer.pages, key.page, key.place, page_tokens, layer.width);
  for (int64_t i = threadIdx.x; i < layer.width / 8; i += blockDim.x)
    *reinterpret_cast<uint4*>(to.chunk(i)) = *reinterpret_cast<const uint4*>(from.chunk(i));
}

/// A thread block a token.
__global__ void read_page_kernel(uint16_t* pages, int64_t page, int page_tokens, int64_t width, uint16_t* rows) {
  allow_next_kernel();
  wait_for_previous_kernels();
  const auto token = static_cast<int>(blockIdx.x);
  const KeyPlace from = page_place(pages, page, token, page_tokens, width);
  for (int64_t i = threadIdx.x; i < width / 8; i += blockDim.x)
    *reinterpret_cast<uint4*>(rows + token * width + i * 8) = *reinterpret_cast<const uint4*>(from.chunk(i));
}

__global__ void write_page_kernel(uint16_t* pages, int64_t page, int page_tokens, int64_t width, const uint16_t* rows) {
  allow_next_kernel();
  wait_for_previous_kernels();
  const auto token = static_cast<int>(blockIdx.x);
  const KeyPlace to = page_place(pages, page, token, page_tokens, width);
  for (int64_t i = threadIdx.x; i < width / 8; i += blockDim.x)
    *reinterpret_cast<uint4*>(to.chunk(i)) = *reinterpret_cast<const uint4*>(rows + token * width + i * 8);
}

}  // namespace

void launch_keep_keys(const KeptKey* kept, int count, int page_tokens, const PagedLayer* layers, int layer_count,
                      cudaStream_t stream) {
  launch(keep_keys_kernel, dim3(static_cast<unsigned>(count), static_cast<unsigned>(layer_count)), dim3(128), 0, stream,
         kept, page_tokens, layers);
}

void launch_read_page(uint16_t* pages, int64_t page, int page_tokens, int64_t width, uint16_t* rows,
                      cudaStream_t stream) {
  launch(read_page_kernel, dim3(static_cast<unsigned>(page_tokens)), dim3(128), 0, stream, pages, page, page_tokens,
         width, rows);
}

void launch_write_page(uint16_t* pages, int64_t page, int page_tokens, int64_t width, const uint16_t* rows,
                       cudaStream_t stream) {
  launch(write_page_kernel, dim3(static_cast<unsigned>(page_tokens)), dim3(128), 0, stream, pages, page, page_tokens,
         width, rows);
}

}  // namespace tensorfold::backend::cuda
