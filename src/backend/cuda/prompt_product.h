// Products of many rows (prompts): 128 outputs by 64 to 256 rows a thread block, on the warpgroup tensor cores.
//
// The same numbers in the same order as the row product (row_product.h): the weights' fragments are the same registers,
// a chain of wgmma steps over ascending k gives the bits of a chain of mma steps, and slices are added in index order.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/row_product.h"

namespace tensorfold::backend::cuda {

/// Rows [first_row, first_row + rows) of the product; first_row a multiple of 8. The input's tiles exist up to the next
/// multiple of 128 rows. `partials` and `arrivals` are not used. `processors`: multiprocessors to be kept busy.
void launch_prompt_product(const RowProduct& product, int rows, int processors, cudaStream_t stream);

/// The same for bf16 weights.
void launch_dense_prompt_product(const RowProduct& product, int rows, cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
