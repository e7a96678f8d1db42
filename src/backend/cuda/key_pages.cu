#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/key_pages.h"
#include "backend/cuda/launch.h"

namespace tensorfold::backend::cuda {
namespace {

__global__ void keep_keys_kernel(const KeptKey* kept, int page_tokens, const PagedLayer* layers) {
  allow_next_kernel();
  wait_for_previous_kernels();
  const KeptKey key = kept[blockIdx.x];
  const PagedLayer layer = layers[blockIdx.y];
  const auto* from = reinterpret_cast<const uint4*>(layer.window + key.record * layer.width);
  auto* to =
      reinterpret_cast<uint4*>(layer.pages + (static_cast<int64_t>(key.page) * page_tokens + key.place) * layer.width);
  for (int64_t i = threadIdx.x; i < layer.width / 8; i += blockDim.x) to[i] = from[i];
}

}  // namespace

void launch_keep_keys(const KeptKey* kept, int count, int page_tokens, const PagedLayer* layers, int layer_count,
                      cudaStream_t stream) {
  launch(keep_keys_kernel, dim3(static_cast<unsigned>(count), static_cast<unsigned>(layer_count)), dim3(128), 0, stream,
         kept, page_tokens, layers);
}

}  // namespace tensorfold::backend::cuda
