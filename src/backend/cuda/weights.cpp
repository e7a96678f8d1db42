#include "backend/cuda/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cuda/scale_range.h"
#include "base/error.h"
#include "format/floats.h"
#include "format/synthetic_values.h"

namespace tensorfold::backend::cuda {
namespace {

ScalarType scalar_type(const format::TensorInfo& tensor) {
  switch (tensor.type) {
    case format::DataType::f32:
      return ScalarType::f32;
    case format::DataType::f16:
      return ScalarType::f16;
    case format::DataType::bf16:
      return ScalarType::bf16;
    default:
      fail(ErrorKind::unsupported, "tensor {} has a type that no product reads", tensor.name);
  }
}

bool stays_packed(const format::Linear& linear) {
  return linear.affine && linear.affine->bits <= 4 && linear.affine->group_size % kGroupInputs == 0 &&
         linear.scales->type == format::DataType::bf16 && linear.biases->type == format::DataType::bf16;
}

/// Whether all scales of a matrix are small enough for the packed format (kScaleLimit).
bool scales_fit(const format::Linear& linear) {
  if (const format::SyntheticTensor* recipe = linear.store->recipe(*linear.scales))
    return std::fabs(recipe->center) * 1.25F < kScaleLimit;
  std::vector<std::byte> bytes(std::min<uint64_t>(linear.scales->bytes, WeightPipeline::kPieceBytes));
  for (uint64_t at = 0; at < linear.scales->bytes; at += bytes.size()) {
    bytes.resize(std::min<uint64_t>(bytes.size(), linear.scales->bytes - at));
    read_parallel(*linear.store, *linear.scales, at, bytes);
    uint16_t largest = 0;
    for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
      uint16_t scale = 0;
      std::memcpy(&scale, bytes.data() + i, sizeof scale);
      largest = std::max<uint16_t>(largest, scale & 0x7FFF);  // magnitudes of bf16 are in the order of their bits
    }
    if (!(format::bf16_to_float(largest) < kScaleLimit)) return false;
  }
  return true;
}

/// Sends one checkpoint matrix (all members of its stack, back to back) through the pipeline.
void pack_linear(const format::Linear& linear, int32_t first_output, const CudaProjection& projection,
                 WeightPipeline& pipeline, cudaStream_t stream) {
  const int64_t rows = linear.stack * linear.outputs;
  const auto weight_row = linear.weight->bytes / static_cast<uint64_t>(rows);
  const auto scale_row = linear.affine ? linear.scales->bytes / static_cast<uint64_t>(rows) : 0;
  const auto bias_row = linear.affine ? linear.biases->bytes / static_cast<uint64_t>(rows) : 0;
  const auto step =
      static_cast<int64_t>(std::max<uint64_t>(1, WeightPipeline::kPieceBytes / std::max<uint64_t>(weight_row, 1)));
  for (int64_t row = 0; row < rows; row += step) {
    const auto count = static_cast<uint64_t>(std::min(step, rows - row));
    const auto first = static_cast<uint64_t>(row);
    pipeline.begin(count * (weight_row + scale_row + bias_row), stream);
    PackSource source;
    source.inputs = static_cast<int32_t>(linear.inputs);
    source.rows = static_cast<int32_t>(count);
    source.first_output = first_output + static_cast<int32_t>(row);
    const void* weights = pipeline.add(*linear.store, *linear.weight, first * weight_row, count * weight_row);
    if (linear.affine) {
      source.codes = static_cast<const uint32_t*>(weights);
      source.scales = pipeline.add(*linear.store, *linear.scales, first * scale_row, count * scale_row);
      source.biases = pipeline.add(*linear.store, *linear.biases, first * bias_row, count * bias_row);
      source.type = scalar_type(*linear.scales);
      source.bits = linear.affine->bits;
      source.group_size = linear.affine->group_size;
    } else {
      source.values = weights;
      source.type = scalar_type(*linear.weight);
    }
    pack_rows(source, projection.memory.data(), projection.packed, nullptr, stream);
    pipeline.end();
  }
}

}  // namespace

CudaVector::CudaVector(std::span<const float> values) : memory(values.size()) {
  cuda_check(cudaMemcpy(memory.data(), values.data(), memory.bytes(), cudaMemcpyHostToDevice),
             "copy a vector to the device");
}

std::unique_ptr<CudaProjection> load_packed_projection(std::span<const format::Linear> stacked, int processors,
                                                       WeightPipeline& pipeline, cudaStream_t stream) {
  check(!stacked.empty(), "a projection of nothing");
  int64_t outputs = 0;
  bool packed = true;
  for (const format::Linear& linear : stacked) {
    check(linear.inputs == stacked.front().inputs, "stacked matrices of different inputs");
    if (linear.inputs % kGroupInputs != 0)
      fail(ErrorKind::unsupported, "{}: the CUDA backend needs inputs in multiples of 64, not {}", linear.weight->name,
           linear.inputs);
    outputs += linear.stack * linear.outputs;
    packed = packed && stays_packed(linear) && scales_fit(linear);
  }
  auto projection = std::make_unique<CudaProjection>();
  const bool paired =
      stacked.size() == 2 && stacked[0].stack * stacked[0].outputs == stacked[1].stack * stacked[1].outputs;
  projection->packed = make_layout(packed ? WeightFormat::affine4 : WeightFormat::dense, static_cast<int>(outputs),
                                   static_cast<int>(stacked.front().inputs), paired, processors);
  projection->memory = DeviceArray<uint8_t>(packed_bytes(projection->packed));
  projection->packed.data = projection->memory.data();
  cuda_check(cudaMemsetAsync(projection->memory.data(), 0, projection->memory.bytes(), stream), "clear weights");
  int64_t first = 0;
  for (const format::Linear& linear : stacked) {
    pack_linear(linear, static_cast<int32_t>(first), *projection, pipeline, stream);
    first += linear.stack * linear.outputs;
  }
  for (const format::Linear& linear : stacked) linear.store->release(*linear.weight);
  return projection;
}

std::unique_ptr<CudaEmbedding> load_embedding_table(const format::Linear& linear, WeightPipeline& pipeline,
                                                    cudaStream_t stream) {
  auto embedding = std::make_unique<CudaEmbedding>();
  const auto load = [&](const format::TensorInfo& tensor) {
    DeviceArray<uint8_t> memory(tensor.bytes);
    for (uint64_t at = 0; at < tensor.bytes; at += WeightPipeline::kPieceBytes) {
      const auto bytes = static_cast<size_t>(std::min(WeightPipeline::kPieceBytes, tensor.bytes - at));
      pipeline.begin(bytes, stream);
      const void* piece = pipeline.add(*linear.store, tensor, at, bytes);
      cuda_check(cudaMemcpyAsync(memory.data() + at, piece, bytes, cudaMemcpyDeviceToDevice, stream),
                 "copy an embedding table");
      pipeline.end();
    }
    return memory;
  };
  EmbeddingTable& table = embedding->table;
  table.vocabulary = static_cast<int32_t>(linear.outputs);
  table.source.inputs = static_cast<int32_t>(linear.inputs);
  table.source.rows = table.vocabulary;
  embedding->weight = load(*linear.weight);
  if (linear.affine) {
    embedding->scales = load(*linear.scales);
    embedding->biases = load(*linear.biases);
    table.source.codes = reinterpret_cast<const uint32_t*>(embedding->weight.data());
    table.source.scales = embedding->scales.data();
    table.source.biases = embedding->biases.data();
    table.source.type = scalar_type(*linear.scales);
    table.source.bits = linear.affine->bits;
    table.source.group_size = linear.affine->group_size;
  } else {
    table.source.values = embedding->weight.data();
    table.source.type = scalar_type(*linear.weight);
  }
  linear.store->release(*linear.weight);
  return embedding;
}

}  // namespace tensorfold::backend::cuda
