// Sparse attention's choice: an index scores blocks of past positions and each row keeps the best.
#pragma once

#include <cstdint>

#include "backend/cache.h"
#include "backend/operations/rotary.h"
#include "backend/tensors.h"

namespace tensorfold::backend {

/// For every row of a plan, which positions it attends to. Backend memory (Backend::make_selection), written by
/// block_index, read by the attention that follows it in the same forward.
class Selection {
 public:
  virtual ~Selection() = default;
};

/// Writes index keys, pools them by blocks of `block` positions (block b: positions b block .. (b + 1) block - 1) and
/// chooses blocks for each row (Flash Next spec 3.5, 5 and 6; GLM-5.3-Flash spec 6.5).
///   pooled key P_b, when the block's last position arrives: the mean of its keys, sum in position order; with gates
///     sum over t of softmax_t(gate_t + gate_position[t]) key_t, a channel at a time; then RMSNorm, then rotation at
///     the block's first position.
///   score_b = sum over heads in order of weight_h weight_factor max(scale q_h . P_b, 0), fp32, a head one fma.
/// A row at position p has n = p + 1 visible positions and n / block complete blocks on its own path. If those are at
/// most `chosen`, it attends to every position; else to the `chosen` blocks of the highest score, the lower block first
/// among equals, and to the tail behind the last complete block, in ascending order.
///
/// The paged entry's rows are [key] or [key | gate]; the row of a block's last position holds the pooled key in place
/// of its own (which only that pooling reads), so any page size works and pages shared up to the middle of a block do.
struct BlockIndex {
  Cache* cache = nullptr;
  int32_t entry = 0;
  int32_t block = 1;
  int32_t chosen = 1;
  int32_t heads = 0;
  int32_t key_dim = 0;
  Tensor query;                           ///< [heads][key_dim]; no buffer: only keys are written
  const Vector* query_norm = nullptr;     ///< a head's RMSNorm [key_dim]; null: none
  Tensor key;                             ///< [key_dim]
  Tensor gate = {};                       ///< [key_dim]; no buffer: blocks are pooled by their mean
  const Vector* gate_position = nullptr;  ///< [block][key_dim]
  const Vector* pooled_norm = nullptr;    ///< RMSNorm of pooled keys [key_dim]; null: none
  float epsilon = 0.0F;                   ///< of both norms
  Rotary rotary = {};
  Tensor weight = {};  ///< [heads]; no buffer: 1
  float weight_factor = 1.0F;
  float scale = 1.0F;
  Selection* selection = nullptr;
};

}  // namespace tensorfold::backend
