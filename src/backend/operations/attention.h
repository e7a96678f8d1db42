// Grouped-query attention over cached keys and values.
#pragma once

#include <cstdint>

#include "backend/cache.h"
#include "backend/operations/block_index.h"
#include "backend/operations/rotary.h"
#include "backend/tensors.h"

namespace tensorfold::backend {

/// Grouped-query attention over a paged entry whose rows are [kv_heads][key_dim] keys then [kv_heads][value_dim]
/// values. Norms and rotates queries and keys, writes keys and values, attends, applies the output gate. A row sees the
/// committed positions of its sequence and its own path in the window (or, `bidirectional`, every window row of its
/// sequence); with `window` > 0 only positions p with own - p < window; with a selection only what it holds. Scores and
/// softmax: keys in tiles of 64 at absolute positions (of a row's selection: at places in its ascending list), partial
/// results every 512 keys, merged in order.
struct Attention {
  Cache* cache = nullptr;
  int32_t entry = 0;
  Tensor
      query;   ///< [heads][key_dim], or with `gated` [heads][2][key_dim]: query then gate. No buffer: only write keys.
  Tensor key;  ///< [kv_heads][key_dim]
  Tensor value;  ///< [kv_heads][value_dim]; may be the same columns as `key`, which is read raw
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  const Vector* query_norm = nullptr;  ///< per-head RMSNorm weight [key_dim]; null: none
  const Vector* key_norm = nullptr;
  float epsilon = 0.0F;
  Rotary rotary;
  float scale = 1.0F;
  int32_t window = 0;
  bool bidirectional = false;
  bool gated = false;             ///< output *= sigmoid(gate)
  bool normalise_values = false;  ///< values pass an RMSNorm without weight, a head at a time
  Tensor output;                  ///< [heads][value_dim]
  /// Of block_index for the same plan; null: every position. Not with `window` or `bidirectional`.
  const Selection* selection = nullptr;
};

}  // namespace tensorfold::backend
