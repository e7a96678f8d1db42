// The row product of 17 to 32 rows with 4-bit weights; see row_product.h.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/row_product.h"

namespace tensorfold::backend::cuda {

/// As launch_row_product with four row tiles.
void launch_wide_row_product(const RowProduct& product, const RowProductShape& shape, cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
