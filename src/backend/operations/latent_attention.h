// Attention over one cached latent a position, from which every head's key and value are products (GLM-5.3-Flash spec
// 6.4; DeepSeek-V2's MLA without its rotary part).
#pragma once

#include <cstdint>

#include "backend/cache.h"
#include "backend/operations/block_index.h"
#include "backend/tensors.h"

namespace tensorfold::backend {

/// Head h's key of position j is K_h c_j and its value V_h c_j, for the latent c_j [latent] that the paged entry keeps.
/// Both products are moved to the row's side, so that no head's keys are ever made:
///   a = K_h^T q_h, one fma chain over q's values in order;  scores scale a . c_j;  softmax, sum and order as Attention
///   with c_j as key and value;  output_h = V_h (weighted sum), the order of Project.
/// A row sees committed positions and its own path, or what its selection holds.
struct LatentAttention {
  Cache* cache = nullptr;
  int32_t entry = 0;
  Tensor query;   ///< [heads][key_dim]; no buffer: only latents are written
  Tensor latent;  ///< [latent], as it is to be kept
  int32_t heads = 0;
  int32_t key_dim = 0;    ///< a multiple of 4
  int32_t value_dim = 0;  ///< likewise
  /// For each head key_dim rows of K_h, then value_dim rows of V_h, over the latent. Null: the halves are apart.
  const Projection* joined = nullptr;
  const Projection* absorb = nullptr;  ///< heads matrices K_h^T, [latent] x [key_dim]: a by the order of Project
  const Projection* expand = nullptr;  ///< heads matrices V_h, [value_dim] x [latent]
  float scale = 1.0F;
  const Selection* selection = nullptr;  ///< null: every position
  Tensor output;                         ///< [heads][value_dim]
};

}  // namespace tensorfold::backend
