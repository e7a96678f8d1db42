// Which table rows Flash Next's n-grams have: everything follows from the config (specs: Flash Next, 3.3).
#pragma once

#include <cstdint>
#include <vector>

#include "backend/operations/ngram.h"
#include "families/qwen4_exp/config.h"

namespace tensorfold::families::qwen4_exp {

/// Multipliers, head sizes and offsets.
backend::NgramHashing derive_hashing(const NgramConfig& ngram, int32_t vocabulary);

/// Rows of each of the table's shards: the heads' rows, padded, in parts that differ by one row at most.
std::vector<int64_t> shard_rows(const NgramConfig& ngram);

}  // namespace tensorfold::families::qwen4_exp
