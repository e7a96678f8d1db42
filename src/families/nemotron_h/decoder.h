// The layers of Nemotron-H: each has one norm and one mixer, which is Mamba-2, attention without positions, or experts.
#pragma once

#include <memory>
#include <variant>

#include "families/inventory.h"
#include "families/nemotron_h/checkpoint.h"
#include "families/nemotron_h/config.h"

namespace tensorfold::families::nemotron_h {

using VectorPointer = std::unique_ptr<backend::Vector>;
using ProjectionPointer = std::unique_ptr<backend::Projection>;

struct MambaWeights {
  ProjectionPointer in;  ///< gate | channels | time steps
  VectorPointer convolution;
  VectorPointer convolution_bias;
  VectorPointer decay_log;
  VectorPointer step_bias;
  VectorPointer skip;
  VectorPointer inner_norm;
  ProjectionPointer out;
};

struct AttentionWeights {
  ProjectionPointer in;  ///< q | k | v
  ProjectionPointer out;
};

struct ExpertWeights {
  ProjectionPointer router;
  VectorPointer correction;
  ProjectionPointer up;    ///< one matrix an expert
  ProjectionPointer down;  ///< likewise
  ProjectionPointer shared_up;
  ProjectionPointer shared_down;
};

struct LayerWeights {
  VectorPointer norm;
  std::variant<MambaWeights, AttentionWeights, ExpertWeights> mixer;
};

/// Loads the layer whose names start with `prefix`.
LayerWeights load_layer(WeightLoader& loader, const Config& config, const std::string& prefix, LayerKind kind,
                        bool stacked);

/// Runs layers; owns the rows that only live inside one.
class Decoder {
 public:
  Decoder(const Config& config, backend::Backend& backend, int32_t max_rows);
  [[nodiscard]] const Config& config() const { return config_; }

  /// x <- x + mixer(RMSNorm(x)) for every row of the plan. `entry`: of the layer's cache; experts have none.
  void layer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
             backend::Tensor x) const;

 private:
  void mamba(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const backend::Vector& norm,
             const MambaWeights& weights, backend::Tensor x) const;
  void attention(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const backend::Vector& norm,
                 const AttentionWeights& weights, backend::Tensor x) const;
  void experts(const backend::Plan& plan, const backend::Vector& norm, const ExpertWeights& weights,
               backend::Tensor x) const;

  Config config_;
  backend::Backend& backend_;
  backend::OwnedTensor projected_;  ///< gate | channels | time steps, or q | k | v
  backend::OwnedTensor mixed_;      ///< the mixer's output before its last product
  backend::OwnedTensor normed_;     ///< what router and experts read
  backend::OwnedTensor logits_;     ///< the router's
  backend::OwnedTensor inner_;      ///< the shared expert's
  backend::OwnedTensor shared_;     ///< its output
};

}  // namespace tensorfold::families::nemotron_h
