// The Mamba-2 mixer between its two products.
#pragma once

#include <cstdint>
#include <limits>

#include "backend/cache.h"
#include "backend/tensors.h"

namespace tensorfold::backend {

/// Causal convolution + SiLU, time steps, state step, skip, gate and grouped RMSNorm of one layer (Nemotron 3.5 spec
/// 3.1, 2 to 9). Per head with dt = clamp(softplus(step + step_bias)) and a = exp(-exp(decay_log) dt), both worked out
/// in double precision and rounded to fp32:
///   S = a S + (dt x) B^T;  y = S C + skip x;  v = silu(gate) y;  output = RMSNorm over each group's values of v.
/// A row continues from its parent row's state; roots from the sequence's committed state.
struct Mamba2 {
  Cache* cache = nullptr;
  int32_t entry = 0;
  Tensor mixed;                              ///< raw x | B | C channels before the convolution
  Tensor gate;                               ///< z, [heads][head_dim]
  Tensor step;                               ///< raw dt, [heads]
  const Vector* convolution = nullptr;       ///< [channels][kernel], tap kernel-1 multiplies the current row
  const Vector* convolution_bias = nullptr;  ///< [channels]
  const Vector* decay_log = nullptr;         ///< A_log [heads]
  const Vector* step_bias = nullptr;         ///< dt_bias [heads]
  const Vector* skip = nullptr;              ///< D [heads]
  const Vector* norm = nullptr;              ///< [heads][head_dim]
  float epsilon = 0.0F;                      ///< of that norm
  float least_step = 0.0F;
  float most_step = std::numeric_limits<float>::infinity();
  Tensor output;  ///< [heads][head_dim]
};

}  // namespace tensorfold::backend
