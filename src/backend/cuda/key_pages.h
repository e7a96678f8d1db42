// Keys and values of kept window rows move to their pages.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace tensorfold::backend::cuda {

struct PagedLayer {
  uint16_t* pages = nullptr;
  const uint16_t* window = nullptr;
  int64_t width = 0;
};

/// One kept row: window record, page and place inside it.
struct KeptKey {
  int32_t record = 0;
  int32_t page = 0;
  int32_t place = 0;
};

void launch_keep_keys(const KeptKey* kept, int count, int page_tokens, const PagedLayer* layers, int layer_count,
                      cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
