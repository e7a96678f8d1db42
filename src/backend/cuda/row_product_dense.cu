#include "backend/cuda/row_product_launch.cuh"

namespace tensorfold::backend::cuda {

void launch_dense_row_product(const RowProduct& product, int row_tiles, const RowProductShape& shape,
                              cudaStream_t stream);

void launch_dense_row_product(const RowProduct& product, int row_tiles, const RowProductShape& shape,
                              cudaStream_t stream) {
  if (row_tiles == 1) {
    launch_row_product_as<WeightFormat::dense, 1, 2>(product, shape, stream);
  } else if (row_tiles == 2) {
    launch_row_product_as<WeightFormat::dense, 2, 2>(product, shape, stream);
  } else {
    launch_row_product_as<WeightFormat::dense, 4, 2>(product, shape, stream);
  }
}

}  // namespace tensorfold::backend::cuda
