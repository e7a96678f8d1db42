// The layers of GLM-5.3-Flash: each mixes its residual streams before and after Kimi delta or latent attention, and
// again around a dense MLP or experts. The MTP head's layer has the same parts over one stream.
#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "families/glm5_next/checkpoint.h"
#include "families/glm5_next/config.h"
#include "families/inventory.h"

namespace tensorfold::families::glm5_next {

using VectorPointer = std::unique_ptr<backend::Vector>;
using ProjectionPointer = std::unique_ptr<backend::Projection>;

/// Of the streams around one mixer or MLP.
struct StreamSite {
  ProjectionPointer products;
  VectorPointer base;
  VectorPointer scale;
};

struct DeltaWeights {
  ProjectionPointer in;  ///< q | k | v | decay's low rank | gate's low rank | beta
  ProjectionPointer decay;
  ProjectionPointer gate;
  VectorPointer convolution;
  VectorPointer decay_log;
  VectorPointer decay_bias;
  VectorPointer inner_norm;
  ProjectionPointer out;
};

struct AttentionWeights {
  ProjectionPointer in;  ///< query's low rank | latent | index key | index gate | index head weights
  VectorPointer query_norm;
  VectorPointer latent_norm;
  VectorPointer index_norm;
  VectorPointer index_norm_bias;
  VectorPointer index_positions;
  ProjectionPointer queries;  ///< queries | index queries
  ProjectionPointer joined;   ///< null: the next two
  ProjectionPointer absorb;
  ProjectionPointer expand;
  ProjectionPointer out;
};

struct DenseWeights {
  ProjectionPointer in;  ///< gate over up
  ProjectionPointer out;
};

struct ExpertWeights {
  ProjectionPointer router;
  VectorPointer correction;
  ProjectionPointer in;  ///< every gate, then every up
  ProjectionPointer out;
  DenseWeights shared;
};

struct LayerWeights {
  VectorPointer mixer_norm;
  VectorPointer mlp_norm;
  std::variant<DeltaWeights, AttentionWeights> mixer;
  std::variant<DenseWeights, ExpertWeights> mlp;
  std::optional<StreamSite> mixer_site, mlp_site;  ///< the MTP head's layer has none
};

/// Loads the layer whose names start with `prefix`; `streams`: with its stream weights.
LayerWeights load_layer(WeightLoader& loader, backend::Backend& backend, const Config& config, const Layout& layout,
                        const std::string& prefix, LayerKind kind, bool streams);

/// Runs layers; owns the rows that only live inside one.
class Decoder {
 public:
  Decoder(const Config& config, backend::Backend& backend, int32_t max_rows);
  [[nodiscard]] const Config& config() const { return config_; }

  /// The layer over the residual streams x. `entry`: of the layer's first cache entry.
  void layer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
             backend::Tensor x) const;
  /// The same over one residual row: x <- x + mixer(norm(x)); x <- x + mlp(norm(x)).
  void plain_layer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
                   backend::Tensor x) const;

 private:
  /// What a mixer or MLP reads and where its output goes.
  struct Branch {
    backend::Tensor input;
    const backend::Vector* norm;
    backend::Tensor output;
    bool add;  ///< to what the output holds
  };
  /// Collects the streams into one row.
  void enter(const backend::Plan& plan, const StreamSite& site, backend::Tensor x) const;
  void leave(const backend::Plan& plan, backend::Tensor x) const;
  void mixer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
             const Branch& branch) const;
  void mlp(const backend::Plan& plan, const LayerWeights& weights, const Branch& branch) const;
  void delta(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const DeltaWeights& weights,
             const Branch& branch) const;
  void attention(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const AttentionWeights& weights,
                 const Branch& branch) const;
  void dense(const backend::Plan& plan, const DenseWeights& weights, const Branch& branch) const;
  void experts(const backend::Plan& plan, const ExpertWeights& weights, const Branch& branch) const;

  Config config_;
  backend::Backend& backend_;
  VectorPointer ones_;                   ///< the streams' norm has no weight
  backend::OwnedTensor stream_weights_;  ///< of the site at work
  backend::OwnedTensor collected_;       ///< what a mixer or MLP reads
  backend::OwnedTensor branch_;          ///< what it gives back to the streams
  backend::OwnedTensor projected_;       ///< a mixer's first product
  backend::OwnedTensor queries_;         ///< queries | index queries, or a delta layer's decays | gates
  backend::OwnedTensor mixed_;           ///< the mixer's output before its last product
  backend::OwnedTensor normed_;          ///< what router and experts read
  backend::OwnedTensor logits_;          ///< the router's
  backend::OwnedTensor inner_;           ///< a dense MLP's or the shared expert's
  backend::OwnedTensor shared_;          ///< the shared expert's output
  std::unique_ptr<backend::Selection> selection_;
};

}  // namespace tensorfold::families::glm5_next
