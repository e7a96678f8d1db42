// The layers of Gemma 4: sliding or full attention between two norms, then a dense MLP beside routed experts between
// five.
#pragma once

#include <memory>

#include "families/gemma4/checkpoint.h"
#include "families/gemma4/config.h"
#include "families/inventory.h"

namespace tensorfold::families::gemma4 {

using VectorPointer = std::unique_ptr<backend::Vector>;
using ProjectionPointer = std::unique_ptr<backend::Projection>;

struct LayerWeights {
  LayerShape shape;
  VectorPointer input_norm;
  ProjectionPointer attention_in;  ///< q | k | v, or q | k
  VectorPointer query_norm;
  VectorPointer key_norm;
  ProjectionPointer attention_out;
  VectorPointer attention_norm;
  VectorPointer dense_norm;
  ProjectionPointer dense_in;  ///< gate over up
  ProjectionPointer dense_out;
  VectorPointer dense_out_norm;
  VectorPointer router_norm;  ///< router.scale / sqrt(hidden)
  ProjectionPointer router;
  VectorPointer expert_factors;
  VectorPointer expert_norm;
  ProjectionPointer expert_in;
  ProjectionPointer expert_out;
  VectorPointer expert_out_norm;
  VectorPointer out_norm;
  float factor = 1.0F;  ///< layer_scalar
};

LayerWeights load_layer(WeightLoader& loader, backend::Backend& backend, const Config& config, const Layout& layout,
                        size_t layer);

/// Runs layers; owns the rows that only live inside one.
class Decoder {
 public:
  Decoder(const Config& config, backend::Backend& backend, int32_t max_rows);

  /// One layer of spec 3 over the residual stream x, for every row of the plan. `entry`: of the layer's cache.
  void layer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
             backend::Tensor x) const;

 private:
  void attention(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
                 backend::Tensor x) const;
  void feed_forward(const backend::Plan& plan, const LayerWeights& weights, backend::Tensor x) const;

  Config config_;
  backend::Backend& backend_;
  VectorPointer sliding_frequencies_, full_frequencies_;
  backend::OwnedTensor projected_;  ///< q | k | v
  backend::OwnedTensor mixed_;      ///< attention's output before its last product
  backend::OwnedTensor inner_;      ///< the dense MLP's
  backend::OwnedTensor dense_;      ///< its output
  backend::OwnedTensor logits_;     ///< the router's
  backend::OwnedTensor branch_;     ///< attention's output, then the experts'
};

}  // namespace tensorfold::families::gemma4
