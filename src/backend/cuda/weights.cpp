#include "backend/cuda/weights.h"

#include <algorithm>
#include <array>
#include <exception>
#include <thread>
#include <vector>

#include "base/error.h"

namespace tensorfold::backend::cuda {
namespace {

constexpr uint64_t kPieceBytes = 32ULL << 20;  // of one tensor
constexpr size_t kReaders = 8;

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

/// Reads bytes [offset, offset + out.size()) with several threads.
void read_parallel(const format::TensorStore& store, const format::TensorInfo& tensor, uint64_t offset,
                   std::span<std::byte> out) {
  const size_t readers = std::clamp<size_t>(out.size() >> 20, 1, kReaders);
  std::vector<std::exception_ptr> errors(readers);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < readers; ++i) {
      const size_t begin = out.size() * i / readers;
      const size_t end = out.size() * (i + 1) / readers;
      threads.emplace_back([&, i, begin, end] {
        try {
          store.read(tensor, offset + begin, out.subspan(begin, end - begin));
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

/// Two page-locked pieces in turn: one is read from the file while the other is copied and repacked.
class Pipeline {
 public:
  explicit Pipeline(cudaStream_t stream) : stream_(stream) {
    for (auto& slot : slots_)
      cuda_check(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "create an event");
  }
  ~Pipeline() {
    static_cast<void>(cudaStreamSynchronize(stream_));
    for (auto& slot : slots_) static_cast<void>(cudaEventDestroy(slot.done));
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Begins a piece of `bytes`.
  void begin(size_t bytes) {
    current_ = 1 - current_;
    Slot& slot = slots_[current_];
    cuda_check(cudaEventSynchronize(slot.done), "wait for a copy");
    used_ = 0;
    if (slot.host.size() < bytes) {
      slot.host = PinnedArray<std::byte>(bytes);
      slot.device = DeviceArray<std::byte>(bytes);
    }
  }
  /// Reads one part of the piece; returns where it lies on the device.
  const void* add(const format::TensorStore& store, const format::TensorInfo& tensor, uint64_t offset, size_t bytes) {
    Slot& slot = slots_[current_];
    const size_t at = used_;
    used_ += (bytes + 255) / 256 * 256;
    read_parallel(store, tensor, offset, {slot.host.data() + at, bytes});
    cuda_check(cudaMemcpyAsync(slot.device.data() + at, slot.host.data() + at, bytes, cudaMemcpyHostToDevice, stream_),
               "copy weights to the device");
    return slot.device.data() + at;
  }
  void end() { cuda_check(cudaEventRecord(slots_[current_].done, stream_), "record an event"); }

 private:
  struct Slot {
    PinnedArray<std::byte> host;
    DeviceArray<std::byte> device;
    cudaEvent_t done = nullptr;
  };
  cudaStream_t stream_;
  std::array<Slot, 2> slots_;
  size_t current_ = 0;
  size_t used_ = 0;
};

/// Sends one checkpoint matrix (all members of its stack, back to back) through the pipeline.
void pack_linear(const format::Linear& linear, int32_t first_output, const CudaProjection& projection,
                 int32_t* scale_overflow, Pipeline& pipeline, cudaStream_t stream) {
  const int64_t rows = linear.stack * linear.outputs;
  const auto weight_row = linear.weight->bytes / static_cast<uint64_t>(rows);
  const auto scale_row = linear.affine ? linear.scales->bytes / static_cast<uint64_t>(rows) : 0;
  const auto bias_row = linear.affine ? linear.biases->bytes / static_cast<uint64_t>(rows) : 0;
  const auto step = static_cast<int64_t>(std::max<uint64_t>(1, kPieceBytes / std::max<uint64_t>(weight_row, 1)));
  for (int64_t row = 0; row < rows; row += step) {
    const auto count = static_cast<uint64_t>(std::min(step, rows - row));
    const auto first = static_cast<uint64_t>(row);
    pipeline.begin(count * (weight_row + scale_row + bias_row) + 1024);
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
    pack_rows(source, projection.memory.data(), projection.packed, scale_overflow, stream);
    pipeline.end();
  }
}

void pack_all(std::span<const format::Linear> stacked, CudaProjection& projection, int32_t* scale_overflow,
              cudaStream_t stream) {
  projection.memory = DeviceArray<uint8_t>(packed_bytes(projection.packed));
  projection.packed.data = projection.memory.data();
  cuda_check(cudaMemsetAsync(projection.memory.data(), 0, projection.memory.bytes(), stream), "clear weights");
  Pipeline pipeline(stream);
  int64_t first = 0;
  for (const format::Linear& linear : stacked) {
    pack_linear(linear, static_cast<int32_t>(first), projection, scale_overflow, pipeline, stream);
    first += linear.stack * linear.outputs;
  }
  cuda_check(cudaStreamSynchronize(stream), "repack weights");
}

}  // namespace

CudaVector::CudaVector(std::span<const float> values) : memory(values.size()) {
  cuda_check(cudaMemcpy(memory.data(), values.data(), memory.bytes(), cudaMemcpyHostToDevice),
             "copy a vector to the device");
}

std::unique_ptr<CudaProjection> load_packed_projection(std::span<const format::Linear> stacked, int processors,
                                                       cudaStream_t stream) {
  check(!stacked.empty(), "a projection of nothing");
  int64_t outputs = 0;
  bool packed = true;
  for (const format::Linear& linear : stacked) {
    check(linear.inputs == stacked.front().inputs, "stacked matrices of different inputs");
    if (linear.inputs % kGroupInputs != 0)
      fail(ErrorKind::unsupported, "{}: the CUDA backend needs inputs in multiples of 64, not {}", linear.weight->name,
           linear.inputs);
    outputs += linear.stack * linear.outputs;
    packed = packed && stays_packed(linear);
  }
  auto projection = std::make_unique<CudaProjection>();
  const bool paired =
      stacked.size() == 2 && stacked[0].stack * stacked[0].outputs == stacked[1].stack * stacked[1].outputs;
  const auto layout = [&](WeightFormat format) {
    return make_layout(format, static_cast<int>(outputs), static_cast<int>(stacked.front().inputs), paired, processors);
  };
  projection->packed = layout(packed ? WeightFormat::affine4 : WeightFormat::dense);
  DeviceArray<int32_t> overflow(1);
  cuda_check(cudaMemsetAsync(overflow.data(), 0, sizeof(int32_t), stream), "clear a flag");
  pack_all(stacked, *projection, overflow.data(), stream);
  int32_t too_large = 0;
  cuda_check(cudaMemcpy(&too_large, overflow.data(), sizeof too_large, cudaMemcpyDeviceToHost), "read a flag");
  if (too_large != 0) {
    projection->packed = layout(WeightFormat::dense);
    pack_all(stacked, *projection, overflow.data(), stream);
  }
  for (const format::Linear& linear : stacked) linear.store->release(*linear.weight);
  return projection;
}

std::unique_ptr<CudaEmbedding> load_embedding_table(const format::Linear& linear, cudaStream_t stream) {
  auto embedding = std::make_unique<CudaEmbedding>();
  const auto load = [&](const format::TensorInfo& tensor) {
    DeviceArray<uint8_t> memory(tensor.bytes);
    Pipeline pipeline(stream);
    for (uint64_t at = 0; at < tensor.bytes; at += kPieceBytes) {
      const auto bytes = static_cast<size_t>(std::min(kPieceBytes, tensor.bytes - at));
      pipeline.begin(bytes);
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
