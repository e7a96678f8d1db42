// The operations of the design behind one interface. Every operation takes a host-built plan and device buffers and
// returns nothing to the host; only read_draws, read_rows and the page and state transfers synchronise.
//
// The law each implementation keeps (DESIGN section 1): what is computed for a row depends on the row's own prefix
// alone, never on the other rows, their number, the threads, the page size or where a chunk began.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "backend/cache.h"
#include "backend/draw.h"
#include "backend/operations/attention.h"
#include "backend/operations/block_index.h"
#include "backend/operations/experts.h"
#include "backend/operations/kimi_delta.h"
#include "backend/operations/latent_attention.h"
#include "backend/operations/mamba2.h"
#include "backend/operations/manifold_streams.h"
#include "backend/operations/ngram.h"
#include "backend/operations/streams.h"
#include "backend/plan.h"
#include "backend/tensors.h"
#include "format/tensor_store.h"

namespace tensorfold::backend {

/// y = rows(x) * W^T, optionally of RMSNorm(x), with an epilogue in the same pass.
struct Project {
  enum class Epilogue {
    store,         ///< output = y
    add,           ///< output += y (the residual)
    swiglu,        ///< W stacks gate over up: output = silu(y[:n]) * y[n:], width n = outputs / 2
    geglu,         ///< the same with gelu_tanh in place of silu
    relu_squared,  ///< output = max(y, 0)^2
  };
  const Projection* weights = nullptr;
  Tensor input;
  const Vector* norm = nullptr;  ///< weight of an RMSNorm before the product; null: none
  float epsilon = 0.0F;
  Epilogue epilogue = Epilogue::store;
  float limit = 0.0F;  ///< swiglu: above 0, the gate is at most this and |up| too, before SiLU and product
  Tensor output;
  RowSet rows = RowSet::all;
};

/// y = x * (mean(x^2) + epsilon)^(-1/2) * weight. In place is allowed.
struct RmsNorm {
  Tensor input;
  const Vector* weight = nullptr;
  float epsilon = 0.0F;
  Tensor output;
  RowSet rows = RowSet::all;
};

/// y = (x - mean(x)) * (variance(x) + epsilon)^(-1/2) * weight + bias. In place is allowed.
struct LayerNorm {
  Tensor input;
  const Vector* weight = nullptr;
  const Vector* bias = nullptr;
  float epsilon = 0.0F;
  Tensor output;
};

/// output = (residual + RMSNorm(input) * weight) * factor. In place with either input is allowed.
struct NormAdd {
  Tensor input;
  const Vector* weight = nullptr;
  float epsilon = 0.0F;
  Tensor residual;
  float factor = 1.0F;
  Tensor output;
};

/// values = cap * tanh(values / cap), in place.
struct SoftCap {
  Tensor values;
  float cap = 0.0F;
  RowSet rows = RowSet::all;
};

/// Causal convolution + SiLU, gates, gated delta step and gated RMSNorm of one layer (Qwen3.8-27B spec A.5, 2 to 7).
/// A row continues from its parent row's state; roots from the sequence's committed state.
struct GatedDelta {
  Cache* cache = nullptr;
  int32_t entry = 0;
  Tensor mixed;                         ///< raw q | k | v channels before the convolution
  Tensor gate;                          ///< z, [value_heads][value_dim]
  Tensor beta;                          ///< b, [value_heads]
  Tensor decay;                         ///< a, [value_heads]
  const Vector* convolution = nullptr;  ///< [channels][kernel], tap kernel-1 multiplies the current row
  const Vector* decay_log = nullptr;    ///< A_log [value_heads]
  const Vector* decay_bias = nullptr;   ///< dt_bias [value_heads]
  const Vector* norm = nullptr;         ///< [value_dim], plain multiplier
  float epsilon = 0.0F;                 ///< of that norm
  float key_epsilon = 1e-6F;            ///< added to a query or key head's mean of squares before the root
  bool sigmoid_gate = false;            ///< the gate's activation: sigmoid in place of SiLU
  Tensor output;                        ///< [value_heads][value_dim]
};

/// Two-tap dynamic causal convolution inside a draft block (Qwen3.8-27B spec B.3), channel c in group c / group:
///   y_r[c] = (base[side][0][c] + dynamic_r[side][0][c / group]) x_r[c] + (base[side][1][c] + dynamic_r[side][1][..])
///   x_q[c]
/// where q is row r's parent in the plan; a row without one has zeros there.
struct BlockConvolution {
  Tensor input;
  Tensor dynamic;                ///< [2 sides][2 taps][channels / group]
  const Vector* base = nullptr;  ///< [2 sides][2 taps][channels]
  int32_t side = 0;
  int32_t group = 1;
  bool add = false;  ///< output += y instead of output = y
  Tensor output;
};

/// What a backend is, for `info`, logs and cache keys.
struct BackendInfo {
  std::string name;        ///< "cpu", "cuda"
  std::string device;      ///< what it runs on, for people
  std::string arithmetic;  ///< names the bits: cached state is shared only between equal strings
  uint64_t memory_bytes = 0;
  int64_t slice_inputs = 0;  ///< inputs that a product sums in one slice; 0: not known
};

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual BackendInfo info() const = 0;

  // Weights and memory. All throw Error(capacity) when memory ends.
  /// Repacks `stacked` matrices (equal inputs) into one projection; reads each tensor once, in parallel.
  virtual std::unique_ptr<Projection> load_projection(std::span<const format::Linear> stacked) = 0;
  virtual std::unique_ptr<Embedding> load_embedding(const format::Linear& table) = 0;
  virtual std::unique_ptr<Vector> load_vector(std::span<const float> values) = 0;
  /// Activations for up to `rows` rows.
  virtual OwnedTensor allocate(int64_t rows, int64_t width, Precision precision = Precision::full) = 0;
  virtual std::unique_ptr<Cache> make_cache(const CacheLayout& layout, const CacheSize& size) = 0;
  /// Room for what block_index chooses for up to `rows` rows: `chosen` blocks of `block` positions each.
  virtual std::unique_ptr<Selection> make_selection(int64_t rows, int32_t chosen, int32_t block);

  /// Uploads `plan` and runs `forward`, whose operations must all name this plan. Draws, gathers, commits and transfers
  /// stay outside `forward`. A backend may capture what `forward`
  /// enqueues and replay it for later plans of the same `shape` (a caller's key: same model, cache and tensors).
  virtual void run(const Plan& plan, uint64_t shape, const std::function<void()>& forward) = 0;

  // Operations.
  virtual void embed(const Plan& plan, const Embedding& table, float scale, Tensor output) = 0;
  virtual void rms_norm(const Plan& plan, const RmsNorm& arguments) = 0;
  virtual void project(const Plan& plan, const Project& arguments) = 0;
  /// output = input for every row of the plan; the tensors differ, have equal widths and may differ in precision.
  virtual void copy(const Plan& plan, Tensor input, Tensor output) = 0;
  virtual void attention(const Plan& plan, const Attention& arguments) = 0;
  virtual void gated_delta(const Plan& plan, const GatedDelta& arguments) = 0;
  virtual void block_convolution(const Plan& plan, const BlockConvolution& arguments) = 0;
  // Operations that not every backend has: Error(unsupported) names the missing one.
  virtual void norm_add(const Plan& plan, const NormAdd& arguments);
  virtual void soft_cap(const Plan& plan, const SoftCap& arguments);
  virtual void experts(const Plan& plan, const Experts& arguments);
  virtual void mamba2(const Plan& plan, const Mamba2& arguments);
  virtual void mean_streams(const Plan& plan, const MeanStreams& arguments);
  virtual void hyper_connection_read(const Plan& plan, const HyperConnectionRead& arguments);
  virtual void hyper_connection_write(const Plan& plan, const HyperConnectionWrite& arguments);
  /// A table of hashed n-grams from the `shards` that hold its rows in order; keeps their files open, reads no row.
  virtual std::unique_ptr<NgramTable> load_ngram_table(const NgramHashing& hashing,
                                                       std::span<const format::Linear> shards);
  /// output = the looked-up rows of every head, side by side.
  virtual void ngram_embed(const Plan& plan, const NgramTable& table, Tensor output);
  virtual void ngram_branch(const Plan& plan, const NgramBranch& arguments);
  virtual void layer_norm(const Plan& plan, const LayerNorm& arguments);
  virtual void block_index(const Plan& plan, const BlockIndex& arguments);
  virtual void latent_attention(const Plan& plan, const LatentAttention& arguments);
  virtual void kimi_delta(const Plan& plan, const KimiDelta& arguments);
  virtual void stream_weights(const Plan& plan, const StreamWeights& arguments);
  virtual void stream_read(const Plan& plan, const StreamRead& arguments);
  virtual void stream_write(const Plan& plan, const StreamWrite& arguments);
  /// Zeros in the rows at absolute position `position`.
  virtual void clear_position(const Plan& plan, int32_t position, Tensor rows);
  /// output row first + j = input row rows[j]; the tensors differ and have equal widths.
  virtual void gather_rows(std::span<const int32_t> rows, Tensor input, Tensor output, int32_t first) = 0;

  /// Draws one token for each of `rows` from `logits` (fp32 values, vocabulary wide). Results: read_draws.
  virtual void draw(const Plan& plan, Tensor logits, std::span<const DrawRow> rows) = 0;
  /// Waits for the last draw; out.size() is its number of rows. The one synchronisation of a round.
  virtual void read_draws(std::span<Drawn> out) = 0;

  /// Finds the `count` largest of each logit row by (value descending, id ascending). Results: read_candidates.
  virtual void top_candidates(const Plan& plan, Tensor logits, int32_t count) = 0;
  /// Waits for the last top_candidates; [logit rows][count] each.
  virtual void read_candidates(std::span<float> values, std::span<int32_t> ids) = 0;

  /// Keeps the given paths of the last forward with this plan and cache: keys and values move to their pages, recurrent
  /// states are replayed through the forward's own step function. Sequences with keep_all take no part.
  virtual void commit(const Plan& plan, Cache& cache, std::span<const KeptPath> kept) = 0;

  // State and pages. Slots and pages of a new cache hold garbage: clear a slot before the first row of a sequence.
  virtual void clear_state(Cache& cache, int32_t slot) = 0;
  virtual void copy_state(Cache& cache, int32_t from, int32_t to) = 0;
  virtual void copy_page(Cache& cache, int32_t from, int32_t to) = 0;
  virtual void read_state(const Cache& cache, int32_t slot, std::span<std::byte> out) = 0;
  virtual void write_state(Cache& cache, int32_t slot, std::span<const std::byte> in) = 0;
  virtual void read_page(const Cache& cache, int32_t page, std::span<std::byte> out) = 0;
  virtual void write_page(Cache& cache, int32_t page, std::span<const std::byte> in) = 0;

  /// Copies rows [first, first + count) of `tensor` to the host as fp32, row-major [count][width]. Synchronises.
  virtual void read_rows(Tensor tensor, int64_t first, int64_t count, std::span<float> out) = 0;
  virtual void write_rows(Tensor tensor, int64_t first, int64_t count, std::span<const float> in) = 0;
};

/// The CPU backend; `threads` 0: one a core. `simd` names a level ("portable", "avx2", "avx512"; empty: what
/// TENSORFOLD_SIMD names, else the best). `break_order`: a deliberate breach of the law, for tests of the tests:
/// products of several rows sum in another order than products of one.
std::unique_ptr<Backend> make_cpu_backend(int threads, const std::string& simd = "", bool break_order = false);
/// The CUDA backend on device `index`; its stand-in throws Error(unsupported).
std::unique_ptr<Backend> make_cuda_backend(int index);

}  // namespace tensorfold::backend
