// The CUDA backend. See row_product.h, attention.h and gated_delta.h for the orders it sums in.
//
// A plan of at most 16 rows runs as one kernel that walks through a list of operations (forward_program.h); the list is
// made once a kind of forward and finds every later plan at the same address. Where a program does not do (an operation
// that it lacks, a GPU with little shared memory) and up to 32 rows, a plan runs as a graph: the first forward kernel
// by kernel, the second captured, later ones replayed. Larger plans (prompts) run kernel by kernel.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/cuda_cache.h"
#include "backend/cuda/device_array.h"
#include "backend/cuda/device_plan.h"
#include "backend/cuda/draw_queue.h"
#include "backend/cuda/forward_program.h"
#include "backend/cuda/gated_delta.h"
#include "backend/cuda/key_pages.h"
#include "backend/cuda/upload_ring.h"
#include "backend/cuda/weights.h"

namespace tensorfold::backend::cuda {

class CudaBuffer : public Buffer {
 public:
  CudaBuffer() = default;
  ~CudaBuffer() override { count_memory_change(); }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;
  DeviceArray<uint8_t> memory;
  bool bf16 = false;
};

/// A device workspace that grows; growing makes captured graphs stale.
class Workspace {
 public:
  template <typename T>
  T* get(size_t count) {
    if (memory_.size() < count * sizeof(T)) grow(count * sizeof(T));
    return reinterpret_cast<T*>(memory_.data());
  }

 private:
  void grow(size_t bytes);
  DeviceArray<uint8_t> memory_;
};

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(int index);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  [[nodiscard]] BackendInfo info() const override;
  std::unique_ptr<Projection> load_projection(std::span<const format::Linear> stacked) override;
  std::unique_ptr<Embedding> load_embedding(const format::Linear& table) override;
  std::unique_ptr<Vector> load_vector(std::span<const float> values) override;
  OwnedTensor allocate(int64_t rows, int64_t width, Precision precision) override;
  std::unique_ptr<Cache> make_cache(const CacheLayout& layout, const CacheSize& size) override;

  /// Clock ticks of one operation of a program on one multiprocessor: waiting for the phase to begin, then working.
  struct OperationTime {
    OperationKind kind = OperationKind::copy;
    int64_t waited = 0;
    int64_t worked = 0;
  };
  /// Programs that run from now on keep times; returns those of the last one, on thread block 0 or 1.
  std::vector<OperationTime> profile(int block);

  void run(const Plan& plan, uint64_t shape, const std::function<void()>& forward) override;

  void embed(const Plan& plan, const Embedding& table, float scale, Tensor output) override;
  void rms_norm(const Plan& plan, const RmsNorm& arguments) override;
  void project(const Plan& plan, const Project& arguments) override;
  void copy(const Plan& plan, Tensor input, Tensor output) override;
  void attention(const Plan& plan, const Attention& arguments) override;
  void gated_delta(const Plan& plan, const GatedDelta& arguments) override;
  void block_convolution(const Plan& plan, const BlockConvolution& arguments) override;
  void gather_rows(std::span<const int32_t> rows, Tensor input, Tensor output, int32_t first) override;
  void draw(const Plan& plan, Tensor logits, std::span<const DrawRow> rows) override;
  void read_draws(std::span<Drawn> out) override;
  void top_candidates(const Plan& plan, Tensor logits, int32_t count) override;
  void read_candidates(std::span<float> values, std::span<int32_t> ids) override;
  void commit(const Plan& plan, Cache& cache, std::span<const KeptPath> kept) override;

  void clear_state(Cache& cache, int32_t slot) override;
  void copy_state(Cache& cache, int32_t from, int32_t to) override;
  void copy_page(Cache& cache, int32_t from, int32_t to) override;
  void read_state(const Cache& cache, int32_t slot, std::span<std::byte> out) override;
  void write_state(Cache& cache, int32_t slot, std::span<const std::byte> in) override;
  void read_page(const Cache& cache, int32_t page, std::span<std::byte> out) override;
  void write_page(Cache& cache, int32_t page, std::span<const std::byte> in) override;
  void read_rows(Tensor tensor, int64_t first, int64_t count, std::span<float> out) override;
  void write_rows(Tensor tensor, int64_t first, int64_t count, std::span<const float> in) override;

 private:
  /// How many rows, logit rows, ... kernels are launched for: the plan's own numbers, or a graph's bucket.
  struct Extent {
    int32_t rows = 0;
    int32_t logit_rows = 0;
    int32_t sequences = 0;
    int32_t block_rows = 1;  ///< most rows of one sequence
    std::array<int32_t, kMostAttentionKinds> items{};
    auto operator<=>(const Extent&) const = default;
  };
  struct GraphKey {
    uint64_t shape = 0;
    Extent extent;
    auto operator<=>(const GraphKey&) const = default;
  };
  struct Graph {
    bool warm = false;
    cudaGraphExec_t exec = nullptr;
  };
  /// A recorded forward on the device.
  struct Program {
    int row_tiles = 1;
    int32_t operations = 0;
    int32_t products = 0;
    int32_t phases = 0;
    DeviceArray<uint8_t> memory;  ///< operations, then products
    std::vector<AttentionArguments> attentions;
    std::vector<OperationKind> kinds;
  };
  struct ProgramKey {
    uint64_t shape = 0;
    int row_tiles = 1;
    bool logits = true;  ///< whether rows of logits are wanted
    auto operator<=>(const ProgramKey&) const = default;
  };

  [[nodiscard]] Activation activation(const Tensor& tensor) const;
  [[nodiscard]] int32_t rows_of(RowSet set) const { return set == RowSet::logits ? extent_.logit_rows : extent_.rows; }
  [[nodiscard]] const int32_t* count_of(RowSet set) const;
  void upload(const Plan& plan);
  [[nodiscard]] Extent bucket() const;
  /// True if it ran as a program.
  bool run_program(const Plan& plan, const std::function<void()>& forward);
  /// False if the forward asks for what programs lack.
  bool record(Program& program, const std::function<void()>& forward);
  void run_graph(const std::function<void()>& forward);
  void reserve_attention(int kind, int32_t heads, int32_t group_heads, int32_t head_dim);
  void launch_graph(Graph& graph, const std::function<void()>& forward);
  void drop_graphs();
  void forget_recorded();
  int kind_index(const Plan& plan, const AttentionKind& kind);
  void product(const Project& arguments, Activation input, int32_t rows);
  void scale_rows(const Project& arguments, const Activation& input, const Activation& output);
  float* row_squares(int64_t width);
  float* row_scales(int32_t rows);
  float* program_partials(size_t floats);
  void copy_rows(RowSet rows, const Activation& input, const Activation& output);
  Activation product_input(const Project& arguments, int32_t rows);
  [[nodiscard]] AttentionArguments attention_arguments(const Attention& arguments) const;

  int index_ = 0;
  std::string device_name_;
  uint64_t memory_bytes_ = 0;
  int32_t processors_ = 0;
  cudaStream_t stream_ = nullptr;
  UploadRing uploads_;
  WeightPipeline weights_;

  DeviceArray<int32_t> plan_memory_;
  PlanImage image_;
  Extent extent_;
  bool capturing_ = false;
  uint64_t shape_ = 0;
  std::map<uint64_t, std::vector<AttentionKind>> kinds_;
  std::map<GraphKey, Graph> graphs_;
  uint64_t changes_seen_ = 0;
  std::map<ProgramKey, Program> programs_;
  std::set<uint64_t> without_program_;  ///< shapes
  ForwardProgram* recording_ = nullptr;
  DeviceArray<int64_t> times_;
  std::vector<OperationKind> timed_;
  bool programs_fit_ = false;
  DeviceArray<uint32_t> phase_arrivals_;
  uint32_t phase_count_ = 0;  ///< what it has reached when everything launched has run

  Workspace product_rows_;
  Workspace row_squares_;
  Workspace row_scales_;
  Workspace partials_;
  DeviceArray<float> program_partials_;
  Workspace arrivals_;
  Workspace queries_;
  Workspace attention_partials_;
  Workspace attention_sums_;
  Workspace delta_steps_;
  Workspace delta_outputs_;
  Workspace transfer_;
  Workspace gather_list_;
  Workspace commit_list_;
  Workspace layer_tables_;

  DrawQueue draws_;
};

}  // namespace tensorfold::backend::cuda
