// Host side of one form of the row product.
#pragma once

#include <algorithm>
#include <mutex>

#include "backend/cuda/launch.h"
#include "backend/cuda/row_product.cuh"

namespace tensorfold::backend::cuda {

template <WeightFormat Format, int RowTiles>
constexpr int ring_group_bytes(const PackedWeights& weights) {
  return weights.block_tiles * group_bytes(Format) + RowTiles * 1024;
}

/// Stages as long as fit; each slice is cut into chunks of about equal length.
template <WeightFormat Format, int RowTiles>
ProductRing make_ring(const PackedWeights& weights, const RowProductShape& shape) {
  ProductRing ring;
  const int slice_groups = (weights.groups + weights.slices - 1) / weights.slices;
  const int most = std::max(1, shape.shared_bytes / (shape.stages * ring_group_bytes<Format, RowTiles>(weights)));
  const int chunks = (slice_groups + most - 1) / most;
  ring.groups = (slice_groups + chunks - 1) / chunks;
  ring.stages = shape.stages;
  return ring;
}

template <WeightFormat Format, int RowTiles>
void launch_row_product_as(const RowProduct& product, const RowProductShape& shape, cudaStream_t stream) {
  const ProductRing ring = make_ring<Format, RowTiles>(product.weights, shape);
  const int stage = ring.groups * ring_group_bytes<Format, RowTiles>(product.weights);
  const size_t shared = static_cast<size_t>(ring.stages) * static_cast<size_t>(stage + 16);
  static std::once_flag once;
  std::call_once(once, [] { allow_shared_memory(row_product_kernel<Format, RowTiles>, 227 * 1024); });
  launch(row_product_kernel<Format, RowTiles>, dim3(static_cast<unsigned>(shape.blocks)), dim3(kProductThreads), shared,
         stream, product, ring);
}

}  // namespace tensorfold::backend::cuda
