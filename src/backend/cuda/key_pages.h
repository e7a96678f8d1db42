// Keys and values of kept window rows move to their pages; pages leave and come as plain rows.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace tensorfold::backend::cuda {

struct PagedLayer {
  uint16_t* pages = nullptr;
  uint16_t* window = nullptr;
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

/// One page of a layer (key_place.cuh) as rows [page_tokens][width], and back.
void launch_read_page(uint16_t* pages, int64_t page, int page_tokens, int64_t width, uint16_t* rows,
                      cudaStream_t stream);
void launch_write_page(uint16_t* pages, int64_t page, int page_tokens, int64_t width, const uint16_t* rows,
                       cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
