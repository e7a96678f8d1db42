#include "backend/cuda/row_product.h"
#include "backend/cuda/row_product_launch.cuh"
#include "backend/cuda/row_product_wide.h"

namespace tensorfold::backend::cuda {

void launch_dense_row_product(const RowProduct& product, int row_tiles, const RowProductShape& shape,
                              cudaStream_t stream);

size_t row_product_partials(const PackedWeights& weights, int row_tiles) {
  return static_cast<size_t>(weights.slices) * static_cast<size_t>(weights.tiles) * static_cast<size_t>(row_tiles) *
         128;
}

size_t row_product_arrivals(const PackedWeights& weights) { return static_cast<size_t>(weights.tiles); }

void launch_row_product(const RowProduct& product, int row_tiles, const RowProductShape& shape, cudaStream_t stream) {
  constexpr WeightFormat affine = WeightFormat::affine4;
  if (product.weights.format == WeightFormat::dense)
    launch_dense_row_product(product, row_tiles, shape, stream);
  else if (row_tiles == 1)
    launch_row_product_as<affine, 1>(product, shape, stream);
  else if (row_tiles == 2)
    launch_row_product_as<affine, 2>(product, shape, stream);
  else
    launch_wide_row_product(product, shape, stream);
}

}  // namespace tensorfold::backend::cuda
