// The check at load: on the user's own weights and chip, does a row of a window have the bits of the same row alone?
#pragma once

#include <cstdint>
#include <string>

#include "engine/cache_pool.h"
#include "engine/forward.h"

namespace tensorfold::engine {

struct RowCheckResult {
  int32_t exact_rows = 1;  ///< the widest window whose rows, and those of every narrower one tried, are exact
  std::string problem;     ///< empty, or one line that says where bits differed
};

/// Feeds a fixed 48-token prompt, then single rows, and compares chains of 2 to `widest` rows, a tree, what follows
/// a partly kept window, and a window beside another sequence, bit for bit. Chains of more than 8 rows are left out
/// where all would take more than about two seconds. `widest` 1: only feeds four tokens. Needs two free lanes of
/// `pool`, which are free again afterwards. Throws Error(corrupt_file) where logits are NaN or infinite.
RowCheckResult check_rows(CachePool& pool, ForwardRunner& forward, int32_t widest);

}  // namespace tensorfold::engine
