#include "backend/cuda/row_product_launch.cuh"

namespace tensorfold::backend::cuda {

void launch_dense_row_product(const RowProduct& product, int row_tiles, const RowProductShape& shape,
                              cudaStream_t stream);

void launch_dense_row_product(const RowProduct& product, int row_tiles, const RowProductShape& shape,
                              cudaStream_t stream) {
  constexpr WeightFormat dense = WeightFormat::dense;
  if (row_tiles == 1)
    launch_row_product_as<dense, 1>(product, shape, stream);
  else if (row_tiles == 2)
    launch_row_product_as<dense, 2>(product, shape, stream);
  else
    launch_row_product_as<dense, 4>(product, shape, stream);
}

}  // namespace tensorfold::backend::cuda
