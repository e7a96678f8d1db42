// Kimi Delta Attention between its products.
#pragma once

#include <cstdint>

#include "backend/cache.h"
#include "backend/tensors.h"

namespace tensorfold::backend {

/// Causal convolution + SiLU, gates, delta step with a decay a key channel, and gated RMSNorm of one layer
/// (GLM-5.3-Flash spec 6.3, 3 to 8). Per head, with q and k normalised as GatedDelta does:
///   g_i = exp(lower_bound sigmoid(exp(decay_log) (decay_i + decay_bias_i)));  beta = sigmoid(beta), rounded once;
///   S = S diag(g);  d = beta (v - S k);  S = S + d k^T;  y = S q;  output = RMSNorm(y) norm sigmoid(gate).
/// A row continues from its parent row's state; roots from the sequence's committed state.
struct KimiDelta {
  Cache* cache = nullptr;
  int32_t entry = 0;
  Tensor mixed;                         ///< raw q | k | v, [heads][dim] each, before the convolution
  Tensor gate;                          ///< z, [heads][dim]
  Tensor beta;                          ///< b, [heads]
  Tensor decay;                         ///< a, [heads][dim]
  const Vector* convolution = nullptr;  ///< [3 heads dim][kernel], tap kernel-1 multiplies the current row
  const Vector* decay_log = nullptr;    ///< A_log [heads]
  const Vector* decay_bias = nullptr;   ///< dt_bias [heads][dim]
  float lower_bound = -5.0F;            ///< below 0
  const Vector* norm = nullptr;         ///< [dim]
  float epsilon = 0.0F;                 ///< of that norm
  float key_epsilon = 0.0F;             ///< added to a query or key head's mean of squares before the root
  Tensor output;                        ///< [heads][dim]
};

}  // namespace tensorfold::backend
