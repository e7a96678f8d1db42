// Weights on the device: loading, repacking, lookup tables.
#pragma once

#include <memory>
#include <span>

#include "backend/backend.h"
#include "backend/cuda/device_array.h"
#include "backend/cuda/pack.h"
#include "backend/cuda/row_kernels.h"
#include "backend/cuda/row_product.h"
#include "backend/cuda/weight_pipeline.h"

namespace tensorfold::backend::cuda {

class CudaProjection : public Projection {
 public:
  [[nodiscard]] int64_t outputs() const override { return packed.outputs; }
  [[nodiscard]] int64_t inputs() const override { return int64_t{packed.groups} * kGroupInputs; }
  [[nodiscard]] uint64_t bytes() const override { return packed_bytes(packed); }
  PackedWeights packed;
  DeviceArray<uint8_t> memory;
};

class CudaEmbedding : public Embedding {
 public:
  EmbeddingTable table;
  DeviceArray<uint8_t> weight;
  DeviceArray<uint8_t> scales;
  DeviceArray<uint8_t> biases;
};

class CudaVector : public Vector {
 public:
  explicit CudaVector(std::span<const float> values);
  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(memory.size()); }
  DeviceArray<float> memory;
};

/// Reads each tensor once, in pieces by several threads, and repacks them on the device. Affine weights of up to 4 bits
/// with groups of a multiple of 64 and bf16 scales stay packed; all others are kept as their bf16 values, which is what
/// a product would round them to. So is a matrix with a scale of kScaleLimit or more. Returns when everything is read
/// and enqueued. Throws Error(unsupported) for inputs that are no multiple of 64.
std::unique_ptr<CudaProjection> load_packed_projection(std::span<const format::Linear> stacked, int processors,
                                                       WeightPipeline& pipeline, cudaStream_t stream);
std::unique_ptr<CudaEmbedding> load_embedding_table(const format::Linear& table, WeightPipeline& pipeline,
                                                    cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
