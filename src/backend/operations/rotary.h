// Rotary positions, for every operation that turns heads.
#pragma once

#include "backend/tensors.h"

namespace tensorfold::backend {

/// Rotary embedding of the first 2 * frequencies values of a head: angle = position * frequency[d].
struct Rotary {
  const Vector* frequencies = nullptr;  ///< null: none
  bool interleaved = false;             ///< false: pairs (d, d + n); true: pairs (2d, 2d + 1)
};

}  // namespace tensorfold::backend
