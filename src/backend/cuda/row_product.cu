#include "backend/cuda/row_product.h"
#include "backend/cuda/row_product_launch.cuh"

namespace tensorfold::backend::cuda {

void launch_dense_row_product(const RowProduct& product, int row_tiles, const RowProductShape& shape,
                              cudaStream_t stream);

size_t row_product_partials(int blocks, int row_tiles) {
  return static_cast<size_t>(blocks) * kMostSlices * kConsumerWarps * static_cast<size_t>(row_tiles) * 128;
}

size_t row_product_flags(int blocks) { return static_cast<size_t>(blocks) * kConsumerWarps; }

void launch_row_product(const RowProduct& product, int row_tiles, const RowProductShape& shape, cudaStream_t stream) {
  if (product.weights.format == WeightFormat::dense) {
    launch_dense_row_product(product, row_tiles, shape, stream);
  } else if (row_tiles == 1) {
    launch_row_product_as<WeightFormat::affine4, 1, 6>(product, shape, stream);
  } else if (row_tiles == 2) {
    launch_row_product_as<WeightFormat::affine4, 2, 6>(product, shape, stream);
  } else {
    launch_row_product_as<WeightFormat::affine4, 4, 3>(product, shape, stream);
  }
}

}  // namespace tensorfold::backend::cuda
