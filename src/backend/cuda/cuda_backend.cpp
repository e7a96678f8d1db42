#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/open_device.h"
#include "base/error.h"

namespace tensorfold::backend::cuda {
namespace {

constexpr size_t kPlanWords = 8ULL << 20;
constexpr int64_t kMostSlots = 16384;  // partial attention results of a row
constexpr int32_t kMostGraphRows = kMostRowsAProduct;

int32_t row_bucket(int32_t rows) {
  for (const int32_t bucket : {0, 1, 8, 16}) {
    if (rows <= bucket) return bucket;
  }
  return kMostGraphRows;
}

}  // namespace

void Workspace::grow(size_t bytes) {
  count_memory_change();
  memory_ = DeviceArray<uint8_t>();
  memory_ = DeviceArray<uint8_t>(bytes + bytes / 4);
  cuda_check(cudaMemset(memory_.data(), 0, memory_.bytes()), "clear a workspace");
  cuda_check(cudaDeviceSynchronize(), "clear a workspace");
}

CudaBackend::CudaBackend(int index) : index_(index) {
  const Device device = open_device(index);
  device_name_ = device.name;
  memory_bytes_ = device.free_bytes;
  processors_ = device.processors;
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream");
  plan_memory_ = DeviceArray<int32_t>(kPlanWords);
  programs_fit_ = device.cooperative && forward_program_fits(device.shared_bytes);
  phase_arrivals_ = DeviceArray<uint32_t>(32);
  cuda_check(cudaMemset(phase_arrivals_.data(), 0, phase_arrivals_.bytes()), "clear a counter");
}

CudaBackend::~CudaBackend() {
  static_cast<void>(cudaStreamSynchronize(stream_));
  drop_graphs();
  static_cast<void>(cudaStreamDestroy(stream_));
}

BackendInfo CudaBackend::info() const { return {"cuda", device_name_, "cuda-bf16-2", memory_bytes_}; }

std::unique_ptr<Projection> CudaBackend::load_projection(std::span<const format::Linear> stacked) {
  return load_packed_projection(stacked, processors_, weights_, stream_);
}

std::unique_ptr<Embedding> CudaBackend::load_embedding(const format::Linear& table) {
  return load_embedding_table(table, weights_, stream_);
}

std::unique_ptr<Vector> CudaBackend::load_vector(std::span<const float> values) {
  return std::make_unique<CudaVector>(values);
}

OwnedTensor CudaBackend::allocate(int64_t rows, int64_t width, Precision precision) {
  count_memory_change();
  auto buffer = std::make_unique<CudaBuffer>();
  buffer->bf16 = precision == Precision::product;
  const int64_t stride = buffer->bf16 ? (width + 63) / 64 * 64 : width;
  const int64_t all_rows = (rows + 127) / 128 * 128;
  buffer->memory = DeviceArray<uint8_t>(static_cast<size_t>(all_rows * stride) * (buffer->bf16 ? 2 : 4));
  cuda_check(cudaMemsetAsync(buffer->memory.data(), 0, buffer->memory.bytes(), stream_), "clear activations");
  OwnedTensor tensor;
  tensor.view = {buffer.get(), width, stride, 0};
  tensor.memory = std::move(buffer);
  return tensor;
}

std::unique_ptr<Cache> CudaBackend::make_cache(const CacheLayout& layout, const CacheSize& size) {
  weights_.release();  // loading is over, or mostly
  for (const CacheEntry& entry : layout.entries) {
    const auto* state = std::get_if<StateEntry>(&entry);
    if (state == nullptr) continue;
    const auto* delta = std::get_if<GatedDeltaShape>(&state->shape);
    if (delta == nullptr) fail(ErrorKind::unsupported, "{}: the CUDA backend has no such recurrence yet", state->name);
    if (!gated_delta_supports(*delta))
      fail(ErrorKind::unsupported, "{}: the CUDA backend steps key heads of 128 values only", state->name);
  }
  return std::make_unique<CudaCache>(layout, size);
}

Activation CudaBackend::activation(const Tensor& tensor) const {
  if (!tensor) return {};
  const auto& buffer = dynamic_cast<const CudaBuffer&>(*tensor.buffer);
  return {buffer.memory.data(), tensor.stride, tensor.offset, tensor.width, buffer.bf16 ? 1 : 0};
}

const int32_t* CudaBackend::count_of(RowSet set) const { return plan_memory_.data() + (set == RowSet::logits ? 1 : 0); }

void CudaBackend::upload(const Plan& plan) {
  image_ = make_plan_image(plan, kinds_[shape_], kMostSlots);
  check(image_.words.size() <= kPlanWords, "the plan fits its memory");
  check(image_.window_rows <= kMostWindowRows, "a plan has at most 256 rows beside those that are all kept");
  uploads_.copy(plan_memory_.data(), image_.words.data(), image_.words.size() * 4, stream_);
  const PlanHeader& header = image_.header;
  extent_ = {header.rows, header.logit_rows, header.sequences, header.longest_sequence, {}};
  for (size_t i = 0; i < kinds_[shape_].size(); ++i) extent_.items[i] = header.attention[i].items;
}

CudaBackend::Extent CudaBackend::bucket() const {
  Extent e = extent_;
  e.rows = row_bucket(e.rows);
  e.logit_rows = row_bucket(e.logit_rows);
  e.sequences = row_bucket(e.sequences);
  e.block_rows = row_bucket(e.block_rows);
  for (int32_t& items : e.items)
    items = items == 0 ? 0 : static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(std::max(items, 4))));
  return e;
}

void CudaBackend::drop_graphs() {
  for (auto& [key, graph] : graphs_)
    if (graph.exec != nullptr) static_cast<void>(cudaGraphExecDestroy(graph.exec));
  graphs_.clear();
}

void CudaBackend::launch_graph(Graph& graph, const std::function<void()>& forward) {
  if (graph.exec == nullptr) {
    cudaGraph_t captured = nullptr;
    cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "begin a capture");
    capturing_ = true;
    try {
      forward();
    } catch (...) {
      capturing_ = false;
      static_cast<void>(cudaStreamEndCapture(stream_, &captured));
      if (captured != nullptr) static_cast<void>(cudaGraphDestroy(captured));
      throw;
    }
    capturing_ = false;
    cuda_check(cudaStreamEndCapture(stream_, &captured), "end a capture");
    const cudaError_t status = cudaGraphInstantiate(&graph.exec, captured, 0);
    static_cast<void>(cudaGraphDestroy(captured));
    cuda_check(status, "make a graph");
  }
  cuda_check(cudaGraphLaunch(graph.exec, stream_), "launch a graph");
}

void CudaBackend::run_graph(const std::function<void()>& forward) {
  const Extent own = extent_;
  extent_ = bucket();
  Graph& graph = graphs_[{shape_, extent_}];
  if (!graph.warm) {
    forward();
    // A forward that asked for new work lists gets another key the next time, and is warm only after that.
    graph.warm = true;
    extent_ = own;
    return;
  }
  launch_graph(graph, forward);
}

bool CudaBackend::record(Program& program, const std::function<void()>& forward) {
  ForwardProgram built(program.row_tiles);
  recording_ = &built;
  try {
    forward();
  } catch (...) {
    recording_ = nullptr;
    throw;
  }
  recording_ = nullptr;
  if (built.refused()) return false;
  built.finish();
  program.operations = static_cast<int32_t>(built.operations().size());
  program.products = static_cast<int32_t>(built.products().size());
  program.phases = built.phases();
  program.attentions = built.attentions();
  program.kinds.clear();
  for (const Operation& operation : built.operations()) program.kinds.push_back(operation.kind);
  const size_t first = built.operations().size() * sizeof(Operation);
  const size_t second = built.products().size() * sizeof(ProductStream);
  program.memory = DeviceArray<uint8_t>(first + second);
  cuda_check(cudaMemcpyAsync(program.memory.data(), built.operations().data(), first, cudaMemcpyHostToDevice, stream_),
             "copy a program");
  cuda_check(
      cudaMemcpyAsync(program.memory.data() + first, built.products().data(), second, cudaMemcpyHostToDevice, stream_),
      "copy a program");
  cuda_check(cudaStreamSynchronize(stream_), "copy a program");
  return true;
}

bool CudaBackend::run_program(const Plan& plan, const std::function<void()>& forward) {
  if (!programs_fit_ || extent_.rows > kMostProgramRows || without_program_.contains(shape_)) return false;
  const int row_tiles = extent_.rows <= 8 ? 1 : 2;
  const ProgramKey key{shape_, row_tiles, extent_.logit_rows > 0};
  for (int attempt = 0;; ++attempt) {
    Program& program = programs_[key];
    program.row_tiles = row_tiles;
    if (program.operations == 0 && !record(program, forward)) {
      programs_.erase(key);
      without_program_.insert(shape_);
      upload(plan);
      return false;
    }
    for (const AttentionArguments& a : program.attentions)
      reserve_attention(a.kind, a.heads, a.heads / a.kv_heads, a.head_dim);
    if (memory_changes() == changes_seen_) {
      const auto* memory = program.memory.data();
      launch_forward(
          {reinterpret_cast<const Operation*>(memory),
           reinterpret_cast<const ProductStream*>(memory + static_cast<size_t>(program.operations) * sizeof(Operation)),
           program.operations, program.products, plan_memory_.data(), phase_arrivals_.data(), phase_count_,
           times_.data()},
          row_tiles, processors_, stream_);
      if (times_.data() != nullptr) timed_ = program.kinds;
      phase_count_ += static_cast<uint32_t>(program.phases) * static_cast<uint32_t>(processors_);
      return true;
    }
    check(attempt < 8, "a recorded forward finds its memory in place");
    forget_recorded();
  }
}

std::vector<CudaBackend::OperationTime> CudaBackend::profile(int block) {
  constexpr size_t most_operations = 8192;
  if (times_.data() == nullptr) times_ = DeviceArray<int64_t>(most_operations * 4);
  std::vector<int64_t> ticks(timed_.size() * 2);
  check(ticks.size() * 2 <= times_.size(), "a program's times fit");
  cuda_check(cudaStreamSynchronize(stream_), "finish what runs");
  cuda_check(cudaMemcpy(ticks.data(), times_.data() + ticks.size() * static_cast<size_t>(block),
                        ticks.size() * sizeof(int64_t), cudaMemcpyDeviceToHost),
             "read times");
  std::vector<OperationTime> times;
  for (size_t i = 0; i < timed_.size(); ++i)
    times.push_back({timed_[i], i == 0 ? 0 : ticks[i * 2] - ticks[i * 2 - 1], ticks[i * 2 + 1] - ticks[i * 2]});
  return times;
}

void CudaBackend::forget_recorded() {
  cuda_check(cudaStreamSynchronize(stream_), "finish what runs");
  drop_graphs();
  programs_.clear();
  changes_seen_ = memory_changes();
}

void CudaBackend::run(const Plan& plan, uint64_t shape, const std::function<void()>& forward) {
  cuda_check(cudaSetDevice(index_), "select the GPU");
  shape_ = shape;
  upload(plan);
  if (extent_.rows == 0) return;
  bool single_batches = true;
  for (const auto& batches : image_.batches) single_batches = single_batches && batches.size() <= 1;
  if (extent_.rows > kMostGraphRows || !single_batches) {
    forward();
    return;
  }
  if (memory_changes() != changes_seen_) forget_recorded();
  if (!run_program(plan, forward)) run_graph(forward);
}

}  // namespace tensorfold::backend::cuda

namespace tensorfold::backend {

std::unique_ptr<Backend> make_cuda_backend(int index) { return std::make_unique<cuda::CudaBackend>(index); }

}  // namespace tensorfold::backend
