// Routed experts, for every family that has them; the router's logits and a shared expert are ordinary products.
#pragma once

#include <cstdint>

#include "backend/tensors.h"

namespace tensorfold::backend {

/// What stands between an expert's two products.
enum class Activation {
  swiglu,        ///< gate and up: silu(gate) * up
  geglu,         ///< gate and up: gelu_tanh(gate) * up
  relu_squared,  ///< up alone: max(up, 0)^2
};

/// How a row's logits [experts] become its chosen experts and their weights, in slot order:
///   score = softmax over all experts, or sigmoid, in double precision;
///   the `chosen` experts of the highest score + correction, highest first, the lower id first among equals;
///   weight = score, with `normalise` divided by the sum of the chosen scores (slot order, + 1e-20), times factor,
///   times expert_factors[id]; rounded to fp32 once.
struct Routing {
  enum class Scores { softmax, sigmoid };
  Scores scores = Scores::softmax;
  const Vector* correction = nullptr;  ///< [experts], for the choice only; null: none
  int32_t chosen = 1;
  bool normalise = true;
  float factor = 1.0F;
  const Vector* expert_factors = nullptr;  ///< [experts]; null: 1
};

/// y = sum over slots in slot order of weight * W_out[id] activation(W_in[id] x), each slot one fma on the sum so far;
/// then + [sigmoid(shared_gate) *] shared; output = y or output += y. A slot's two products have the arithmetic of
/// Project, whichever rows share an expert.
struct Experts {
  Tensor input;                  ///< x, [hidden]
  const Vector* norm = nullptr;  ///< weight of an RMSNorm of x; null: none
  float epsilon = 0.0F;
  Tensor logits;  ///< [experts], fp32
  Routing routing;
  /// Of matrices over x: one an expert (gate over up, or up alone), or the experts' gates and then their ups.
  const Projection* in = nullptr;
  const Projection* out = nullptr;  ///< one matrix an expert
  Activation activation = Activation::swiglu;
  float limit = 0.0F;       ///< swiglu: as Project::limit
  Tensor shared = {};       ///< output rows of a shared expert; no buffer: none
  Tensor shared_gate = {};  ///< [1], raw; no buffer: none
  bool add = false;
  Tensor output;  ///< [hidden]
};

}  // namespace tensorfold::backend
