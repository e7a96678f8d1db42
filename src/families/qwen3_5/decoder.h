// The layers of the dense Qwen3.5 architecture, against the backend's operations: what one layer holds and what it does
// to the residual stream. The model and its MTP head are built from these.
#pragma once

#include <memory>
#include <variant>

#include "families/delta_mixer.h"
#include "families/inventory.h"
#include "families/qwen3_5/config.h"

namespace tensorfold::families::qwen3_5 {

using VectorPointer = std::unique_ptr<backend::Vector>;
using ProjectionPointer = std::unique_ptr<backend::Projection>;

struct AttentionWeights {
  VectorPointer norm;
  ProjectionPointer in;  ///< q | k | v; q: [heads][query, gate][head_dim]
  VectorPointer query_norm;
  VectorPointer key_norm;
  ProjectionPointer out;
};

struct NormedDeltaWeights {
  VectorPointer norm;
  DeltaWeights mixer;
};

struct MlpWeights {
  VectorPointer norm;
  ProjectionPointer in;  ///< gate over up
  ProjectionPointer out;
};

struct LayerWeights {
  std::variant<AttentionWeights, NormedDeltaWeights> mixer;
  MlpWeights mlp;
};

/// Loads the layer whose names start with `prefix`. `shift`: 1 for zero-centred norms, else 0.
LayerWeights load_layer(WeightLoader& loader, const std::string& prefix, bool attends, float shift);

/// Runs layers; owns the rows that only live inside one.
class Decoder {
 public:
  Decoder(const Config& config, backend::Backend& backend, int32_t max_rows);
  [[nodiscard]] const Config& config() const { return config_; }

  /// x <- x + mixer(RMSNorm(x)); x <- x + MLP(RMSNorm(x)), for every row of the plan. `entry`: of the layer's cache.
  void layer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
             backend::Tensor x) const;

 private:
  void attention(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const AttentionWeights& weights,
                 backend::Tensor x) const;
  void mlp(const backend::Plan& plan, const MlpWeights& weights, backend::Tensor x) const;

  Config config_;
  backend::Backend& backend_;
  VectorPointer frequencies_;
  backend::OwnedTensor projected_;  ///< q | k | v, or qkv | z | b | a
  backend::OwnedTensor mixed_;      ///< the mixer's output before its last product
  backend::OwnedTensor inner_;      ///< the MLP's
};

}  // namespace tensorfold::families::qwen3_5
