// The layers of Flash Next over a residual of several streams: a mixer (gated delta rule, or attention to the blocks
// that an indexer chooses) and routed experts, each between the read and the write of a hyper-connection; one layer
// first adds a hashed n-gram embedding.
#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "families/delta_mixer.h"
#include "families/inventory.h"
#include "families/qwen4_exp/checkpoint.h"
#include "families/qwen4_exp/config.h"

namespace tensorfold::families::qwen4_exp {

using VectorPointer = std::unique_ptr<backend::Vector>;
using ProjectionPointer = std::unique_ptr<backend::Projection>;

struct HyperConnectionWeights {
  VectorPointer norm;
  ProjectionPointer down;  ///< down, and inject below it where the connection writes
  ProjectionPointer up;
};

struct SparseWeights {
  ProjectionPointer in;  ///< q | k | v | index queries, index key; q: [heads][query, gate][head_dim]
  VectorPointer query_norm, key_norm, index_query_norm, index_key_norm;
  ProjectionPointer out;
};

struct ExpertWeights {
  ProjectionPointer router;
  ProjectionPointer in;
  ProjectionPointer out;
  ProjectionPointer shared_in;  ///< gate over up
  ProjectionPointer shared_out;
  ProjectionPointer shared_gate;
};

struct NgramWeights {
  std::unique_ptr<backend::NgramTable> table;
  ProjectionPointer key, value;
  VectorPointer key_norm, query_norm, conv_norm, convolution;
};

struct LayerWeights {
  std::optional<NgramWeights> ngram;
  HyperConnectionWeights mixer_connection;
  std::variant<SparseWeights, DeltaWeights> mixer;
  HyperConnectionWeights expert_connection;
  ExpertWeights experts;
};

/// Cache entries of a layer; -1: it has none.
struct LayerEntries {
  int32_t mixer = -1;
  int32_t index = -1;
  int32_t ngram = -1;
};
/// Adds a layer's entries to `layout`.
LayerEntries add_entries(const Config& config, const std::string& name, bool attends, bool ngram,
                         backend::CacheLayout& layout);

/// `shift`: 1 for zero-centred norms, else 0. `inject`: the connection writes.
HyperConnectionWeights load_hyper_connection(WeightLoader& loader, const std::string& module, float shift, bool inject);
/// Loads the layer whose names start with `prefix`, without an n-gram embedding.
LayerWeights load_layer(WeightLoader& loader, const Config& config, const std::string& prefix, bool attends,
                        ExpertSpelling spelling, float shift);
/// Throws Error(corrupt_file) where the checkpoint's hash constants are not those of its config.
NgramWeights load_ngram(WeightLoader& loader, const Config& config, const std::string& layer_prefix, float shift);

/// Runs layers; owns the rows that only live inside one.
class Decoder {
 public:
  Decoder(const Config& config, backend::Backend& backend, int32_t max_rows);
  [[nodiscard]] const Config& config() const { return config_; }

  /// One layer of spec 3.1, step 2, over the streams h, for every row of the plan.
  void layer(const backend::Plan& plan, backend::Cache& cache, const LayerEntries& entries, const LayerWeights& weights,
             backend::Tensor h) const;
  /// The rows between the read of a connection that does not write and the head; they live until the next layer.
  [[nodiscard]] backend::Tensor read_out(const backend::Plan& plan, const HyperConnectionWeights& weights,
                                         backend::Tensor h) const;

 private:
  void read(const backend::Plan& plan, const HyperConnectionWeights& weights, backend::Tensor h,
            backend::Tensor gates) const;
  void ngram(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const NgramWeights& weights,
             backend::Tensor h) const;
  void attention(const backend::Plan& plan, backend::Cache& cache, const LayerEntries& entries,
                 const SparseWeights& weights) const;
  void experts(const backend::Plan& plan, const ExpertWeights& weights) const;

  Config config_;
  backend::Backend& backend_;
  VectorPointer frequencies_;
  std::unique_ptr<backend::Selection> selection_;
  backend::OwnedTensor input_;      ///< what a mixer or the experts read
  backend::OwnedTensor branch_;     ///< what they make of it
  backend::OwnedTensor gates_;      ///< one a stream
  backend::OwnedTensor projected_;  ///< the mixer's first product
  backend::OwnedTensor mixed_;      ///< its output before its last product
  backend::OwnedTensor logits_;     ///< the router's
  backend::OwnedTensor inner_;      ///< the shared expert's
  backend::OwnedTensor shared_;     ///< its output
  backend::OwnedTensor shared_gate_;
  backend::OwnedTensor ngrams_;  ///< looked-up rows
  backend::OwnedTensor keys_;    ///< their products
  backend::OwnedTensor value_;
};

}  // namespace tensorfold::families::qwen4_exp
