// The CPU backend: every operation of backend/backend.h on a pool of threads, fp32 activations and caches.
//
// Who computes what: products split over output tiles, norms over rows, attention over (row, key head, partition),
// recurrences over (sequence, value head). No split and no row count changes an order of summation; the orders stand in
// product_kernels.h, attention_kernels.h and row_kernels.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_cache.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/packed_matrix.h"
#include "base/thread_pool.h"

namespace tensorfold::backend::cpu {

/// Activations: rows of fp32.
struct CpuBuffer final : Buffer {
  explicit CpuBuffer(size_t bytes) : memory(bytes, "activations") {}
  AlignedBytes memory;
};

struct CpuVector final : Vector {
  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(values.size()); }
  /// The vector read as [n][columns], turned to [columns][n]; made on first use.
  const float* transposed(int64_t columns) const;
  std::vector<float> values;

 private:
  mutable std::vector<float> turned_;
};

struct CpuProjection final : Projection {
  [[nodiscard]] int64_t outputs() const override { return output_count; }
  [[nodiscard]] int64_t inputs() const override { return parts.front().inputs; }
  [[nodiscard]] uint64_t bytes() const override;
  std::vector<PackedMatrix> parts;
  std::vector<int64_t> first_output;  ///< of each part
  int64_t output_count = 0;
  int64_t tiles = 0;
};

/// How the rows of a looked-up table lie in their tensors.
struct TableFormat {
  int64_t rows = 0;
  int64_t width = 0;
  int32_t bits = 0;  ///< 0: not quantised
  int64_t group = 0;
  format::DataType type = format::DataType::f32;  ///< of the elements, or of the pairs
  int64_t row_bytes = 0;
  int64_t pair_row_bytes = 0;
};

/// The table as it lies on disk; rows are dequantised when they are looked up.
struct CpuEmbedding final : Embedding {
  TableFormat format;
  AlignedBytes codes, scales, biases;
};

/// Memory that grows to what an operation asks for and is used again by the next.
class Workspace {
 public:
  float* floats(int64_t count);

 private:
  AlignedBytes memory_;
};

struct HeadPreparation;
struct RawRows;
struct CpuSelection;

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, const std::string& level, bool break_order);

  [[nodiscard]] BackendInfo info() const override;
  std::unique_ptr<Projection> load_projection(std::span<const format::Linear> stacked) override;
  std::unique_ptr<Embedding> load_embedding(const format::Linear& table) override;
  std::unique_ptr<Vector> load_vector(std::span<const float> values) override;
  OwnedTensor allocate(int64_t rows, int64_t width, Precision precision) override;
  std::unique_ptr<Cache> make_cache(const CacheLayout& layout, const CacheSize& size) override;
  std::unique_ptr<Selection> make_selection(int64_t rows, int32_t chosen, int32_t block) override;
  void run(const Plan& plan, uint64_t shape, const std::function<void()>& forward) override;

  void embed(const Plan& plan, const Embedding& table, float scale, Tensor output) override;
  void rms_norm(const Plan& plan, const RmsNorm& arguments) override;
  void project(const Plan& plan, const Project& arguments) override;
  void copy(const Plan& plan, Tensor input, Tensor output) override;
  void attention(const Plan& plan, const Attention& arguments) override;
  void gated_delta(const Plan& plan, const GatedDelta& arguments) override;
  void block_convolution(const Plan& plan, const BlockConvolution& arguments) override;
  void norm_add(const Plan& plan, const NormAdd& arguments) override;
  void soft_cap(const Plan& plan, const SoftCap& arguments) override;
  void experts(const Plan& plan, const Experts& arguments) override;
  void mamba2(const Plan& plan, const Mamba2& arguments) override;
  void mean_streams(const Plan& plan, const MeanStreams& arguments) override;
  void hyper_connection_read(const Plan& plan, const HyperConnectionRead& arguments) override;
  void hyper_connection_write(const Plan& plan, const HyperConnectionWrite& arguments) override;
  std::unique_ptr<NgramTable> load_ngram_table(const NgramHashing& hashing,
                                               std::span<const format::Linear> shards) override;
  void ngram_embed(const Plan& plan, const NgramTable& table, Tensor output) override;
  void ngram_branch(const Plan& plan, const NgramBranch& arguments) override;
  void layer_norm(const Plan& plan, const LayerNorm& arguments) override;
  void block_index(const Plan& plan, const BlockIndex& arguments) override;
  void latent_attention(const Plan& plan, const LatentAttention& arguments) override;
  void kimi_delta(const Plan& plan, const KimiDelta& arguments) override;
  void stream_weights(const Plan& plan, const StreamWeights& arguments) override;
  void stream_read(const Plan& plan, const StreamRead& arguments) override;
  void stream_write(const Plan& plan, const StreamWrite& arguments) override;
  void clear_position(const Plan& plan, int32_t position, Tensor rows) override;
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
  /// What a plan's rows mean for caches, worked out once a forward.
  struct PlanView {
    const Plan* plan = nullptr;
    uint64_t forward = 0;
    std::vector<int32_t> window_index;  ///< of a row among the rows that are not committed; -1: committed at once
    int32_t window_rows = 0;
    std::vector<int32_t> depth;  ///< rows above it on its own path
  };
  struct DeltaInputs;

  static PlanView view_of(const Plan& plan, uint64_t forward);
  void check_running(const Plan& plan) const;
  float* worker_floats(int worker, int64_t count) { return workers_[static_cast<size_t>(worker)].floats(count); }

  // project.cpp
  /// The input rows, normalised, [block of rows][padded inputs / 16][row of the block][16].
  const float* stage_inputs(const Plan& plan, const Project& arguments, int64_t rows, int64_t padded);
  /// Puts padded row j of `rows` where stage_inputs has it.
  void place_row(const float* row, int64_t padded, int64_t j, int64_t rows, float* staged) const;
  CpuBuffer* projected_buffer(int64_t floats);
  /// sums[row][kTileOutputs] of one output tile for at most kFewRows rows.
  void multiply_few(const PackedMatrix& matrix, int64_t tile, const float* x, int64_t rows, float* panel,
                    float* sums) const;
  /// sums[tile][row][kTileOutputs] of a few output tiles for any rows.
  void multiply_group(const PackedMatrix& matrix, int64_t first_tile, int64_t tiles, const float* x, int64_t rows,
                      float* panel, float* sums) const;
  /// Tiles [first_tile, first_tile + tiles) of one matrix for any rows; `to`: the first tile's column of row 0.
  void multiply_tiles(const PackedMatrix& matrix, int64_t first_tile, int64_t tiles, const float* x, int64_t rows,
                      bool add, float* to, int64_t stride, int worker);
  void multiply(const CpuProjection& weights, const float* x, int64_t rows, bool add, Tensor output);
  /// to = what the first product's outputs `inner` become; `width` values.
  void activate(Activation activation, float limit, const float* inner, int64_t width, float* to) const;

  // experts.cpp
  struct ExpertPairs;
  ExpertPairs route(const Plan& plan, const Experts& arguments);
  /// Every group's rows times its expert's matrices: to[pair][stride].
  void multiply_pairs(const CpuProjection& weights, const ExpertPairs& pairs, const float* x, float* to,
                      int64_t stride);

  // cached_rows.cpp
  /// The absolute position of a plan row.
  [[nodiscard]] int64_t own_position(const Plan& plan, int64_t row) const;
  /// Where a plan row's own cache row goes: its page, or its window record.
  [[nodiscard]] float* own_row(const Plan& plan, CpuCache& cache, int32_t entry, int64_t row) const;
  /// The cache row at a position that a plan row sees on its own path.
  [[nodiscard]] const float* seen_row(const Plan& plan, CpuCache& cache, int32_t entry, int64_t row,
                                      int64_t position) const;
  /// The same of positions [first, first + count); `bidirectional`: every window row of the sequence is seen.
  void seen_rows(const Plan& plan, CpuCache& cache, int32_t entry, int64_t row, int64_t first, int64_t count,
                 bool bidirectional, const float** rows) const;
  static void check_pages(const Plan& plan, const CpuCache& cache);
  static void commit_pages(const Plan& plan, const PlanView& view, CpuCache& cache, int32_t entry,
                           const KeptPath& path);

  // attend.cpp
  struct AttendRows;
  void attend(const Plan& plan, const AttendRows& arguments);

  // attention.cpp
  const float* stage_rotations(const Plan& plan, const Rotary& rotary);
  /// Prepared heads of every row, [heads][how.dim] each; `step`: from one head to the next in `from`.
  const float* stage_heads(const Plan& plan, const HeadPreparation& how, const float* rotations, Tensor from,
                           int64_t heads, int64_t step);
  void store_keys(const Plan& plan, const Attention& arguments, const float* rotations);
  /// What block_index wrote in this forward; null: none.
  const CpuSelection* selection_of(const Selection* selection) const;

  // block_index.cpp
  void store_index_keys(const Plan& plan, const BlockIndex& arguments);
  void score_and_choose(const Plan& plan, const BlockIndex& arguments, const float* queries);

  // latent_attention.cpp
  /// Every head's rows as multiply_tiles reads them: staged[head][rows][padded dim].
  void stage_head_rows(const float* from, int64_t stride, int64_t rows, int64_t heads, int64_t dim, float* staged);
  /// to[row][head][latent] from query rows `stride` apart.
  void absorb_queries(const LatentAttention& arguments, const float* from, int64_t stride, int64_t rows, float* to);
  /// Output rows `stride` apart from weighted sums [row][head][latent].
  void expand_latents(const LatentAttention& arguments, const float* from, int64_t rows, float* to, int64_t stride);

  // recurrence.cpp
  /// step(plan row, head, state before, state after): called for every row of a head in plan order.
  using StepFunction = std::function<void(int64_t row, int64_t head, const float* source, float* state)>;
  /// Walks every (sequence, head) through its rows; kept chains update the committed state, windows leave it alone.
  void walk_states(const Plan& plan, CpuCache& cache, int32_t entry, int64_t heads, int64_t head_floats,
                   const StepFunction& step);
  /// Walks every head of a committed state through `rows` kept rows.
  void replay_states(CpuCache& cache, int32_t entry, int32_t slot, int64_t rows, int64_t heads, int64_t head_floats,
                     const StepFunction& step);
  /// The raw rows of a plan; those of windows are recorded, channels first. Tails lie behind `state_floats`.
  RawRows take_raw_rows(const Plan& plan, CpuCache& cache, int32_t entry, Tensor mixed, std::span<const Tensor> extras,
                        int64_t kernel, int64_t state_floats);
  /// The delta rules' queries and keys, [2][key_heads][dim], in place: x / sqrt(mean square + epsilon), times 1 / dim
  /// (queries) or 1 / sqrt(dim) (keys).
  void normalise_delta_heads(int64_t key_heads, int64_t dim, float epsilon, float* channels) const;
  /// Their outputs, a head at a time in place: RMSNorm, then the gate.
  void norm_and_gate_heads(const Plan& plan, Tensor output, Tensor gate, const Vector* norm, float epsilon,
                           int64_t heads, bool sigmoid);
  /// Raw convolution rows of the chains that are kept at once; they lie behind `state_floats` of their state.
  static void keep_tails(const Plan& plan, CpuCache& cache, int32_t entry, Tensor raw, int64_t kernel,
                         int64_t state_floats);
  static void check_slots(const Plan& plan, const CpuCache& cache);

  // commit.cpp
  /// Advances a committed state by the recorded rows (at least one).
  void replay(CpuCache& cache, int32_t entry, int32_t slot, std::span<const float* const> records);

  // gated_delta.cpp
  void delta_inputs(const GatedDelta& arguments, const GatedDeltaShape& shape, DeltaInputs& inputs);
  /// The step of one row and value head, without state and output.
  static DeltaStep step_of(const GatedDeltaShape& shape, const DeltaInputs& inputs, int64_t row, int64_t head);
  void replay_delta(const GatedDelta& arguments, CpuCache& cache, int32_t entry, int32_t slot,
                    std::span<const float* const> records);

  // kimi_delta.cpp
  struct KimiInputs;
  void kimi_inputs(const KimiDelta& arguments, const KimiDeltaShape& shape, KimiInputs& inputs);
  static DeltaStep step_of(const KimiDeltaShape& shape, const KimiInputs& inputs, int64_t row, int64_t head);
  void replay_kimi(const KimiDelta& arguments, CpuCache& cache, int32_t entry, int32_t slot,
                   std::span<const float* const> records);

  // mamba2.cpp
  struct MambaInputs;
  void mamba_inputs(const Mamba2& arguments, const Mamba2Shape& shape, MambaInputs& inputs);
  static MambaStep step_of(const Mamba2& arguments, const Mamba2Shape& shape, const MambaInputs& inputs, int64_t row,
                           int64_t head);
  void replay_mamba(const Mamba2& arguments, CpuCache& cache, int32_t entry, int32_t slot,
                    std::span<const float* const> records);

  // streams.cpp
  /// Rows in a buffer that grows to what is asked for and keeps its memory.
  static Tensor scratch(std::unique_ptr<CpuBuffer>& slot, int64_t rows, int64_t width);
  /// to[s] = RMSNorm(from[s]) * norm[s] of `count` streams.
  void norm_streams(const float* from, const Vector& norm, int64_t count, int64_t width, float epsilon,
                    float* to) const;

  // ngram_branch.cpp
  /// g and f of one row; `keys`, `queries`: room for a row's streams.
  void ngram_gate(const NgramBranch& arguments, int64_t row, float* keys, float* queries, float* gated,
                  float* normed) const;
  static void replay_ngram(CpuCache& cache, int32_t entry, int32_t slot, std::span<const float* const> records);

  const KernelTable& kernels_;
  const bool break_order_;
  ThreadPool threads_;
  WeightMemory weight_memory_;
  std::vector<Workspace> workers_;
  Workspace staged_, rotation_, queries_, results_, recurrent_, experts_;
  std::unique_ptr<CpuBuffer> projected_;
  std::unique_ptr<CpuBuffer> normed_streams_, low_rank_, stream_mix_, ngram_gated_, ngram_normed_;
  PlanView view_;
  bool running_ = false;
  uint64_t forwards_ = 0;
  std::vector<Drawn> drawn_;
  std::vector<float> candidate_values_;
  std::vector<int32_t> candidate_ids_;
};

/// Prepared queries of some plan rows and how the cache rows of their keys and values lie. A row's heads go in `groups`
/// of `heads` that read the same columns.
struct CpuBackend::AttendRows {
  CpuCache* cache = nullptr;
  int32_t entry = 0;
  int64_t groups = 0;
  int64_t heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t key_step = 0;  ///< from one group's key to the next's
  int64_t value_offset = 0;
  int64_t value_step = 0;
  float scale = 1.0F;
  int32_t window = 0;
  bool bidirectional = false;
  const CpuSelection* selection = nullptr;
  const float* queries = nullptr;  ///< [row_count][groups][heads][key_dim]
  int64_t first_row = 0;
  int64_t row_count = 0;
  float* output = nullptr;  ///< of first_row, [groups][heads][value_dim]
  int64_t output_stride = 0;
};

inline float* row_of(Tensor tensor, int64_t row) {
  return static_cast<CpuBuffer*>(tensor.buffer)->memory.floats() + row * tensor.stride + tensor.offset;
}

/// How many rows an operation covers, and the plan row of its row j.
inline int64_t row_count(const Plan& plan, RowSet rows) {
  return rows == RowSet::all ? plan.rows() : static_cast<int64_t>(plan.logit_rows.size());
}
inline int64_t plan_row(const Plan& plan, RowSet rows, int64_t j) {
  return rows == RowSet::all ? j : plan.logit_rows[static_cast<size_t>(j)];
}

}  // namespace tensorfold::backend::cpu
