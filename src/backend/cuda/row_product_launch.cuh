// Host side of one weight format's row products.
#pragma once

#include <mutex>

#include "backend/cuda/launch.h"
#include "backend/cuda/row_product.cuh"

namespace tensorfold::backend::cuda {

template <WeightFormat Format, int RowTiles, int ChunkGroups>
void launch_row_product_as(const RowProduct& product, const RowProductShape& shape, cudaStream_t stream) {
  using Stage = RowProductStage<Format, RowTiles, ChunkGroups>;
  const size_t shared = static_cast<size_t>(shape.stages) * (Stage::bytes + 16);
  static std::once_flag once;
  std::call_once(once, [] { allow_shared_memory(row_product_kernel<Format, RowTiles, ChunkGroups>, 226 * 1024); });
  launch(row_product_kernel<Format, RowTiles, ChunkGroups>, dim3(static_cast<unsigned>(shape.blocks)),
         dim3((kConsumerWarps + 1) * 32), shared, stream, product, shape.stages);
}

}  // namespace tensorfold::backend::cuda
