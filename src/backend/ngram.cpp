#include "backend/operations/ngram.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace tensorfold::backend {

void hash_ngrams(const NgramHashing& hashing, const Plan& plan, int32_t row, std::span<int64_t> rows) {
  const size_t longest = hashing.multipliers.size();
  check(longest >= 1 && longest <= static_cast<size_t>(kHistoryTokens) + 1, "an n-gram longer than the history");
  check(rows.size() == hashing.sizes.size() && rows.size() == hashing.offsets.size(), "a table row a head");
  const SequenceRows& sequence = plan.sequences[static_cast<size_t>(plan.owner[static_cast<size_t>(row)])];
  const std::span<const int32_t> history = plan.history_of(sequence);
  check(history.size() >= std::min(longest - 1, static_cast<size_t>(sequence.committed)),
        "a plan without the tokens before its rows");
  std::array<uint64_t, kHistoryTokens + 1> mixed{};  // x[n]
  uint64_t x = 0;
  bool ended = false;  // an end token or the sequence's beginning lies between
  size_t back = 0;     // tokens of the history used up
  for (size_t n = 0; n < longest; ++n) {
    int32_t token = hashing.end_token;
    if (row >= 0) {
      token = plan.tokens[static_cast<size_t>(row)];
      row = plan.parents[static_cast<size_t>(row)];
    } else if (back < history.size()) {
      token = history[history.size() - ++back];
    } else {
      ended = true;
    }
    if (n > 0 && token == hashing.end_token) ended = true;
    if (ended) token = hashing.end_token;
    x ^= static_cast<uint64_t>(token) * static_cast<uint64_t>(hashing.multipliers[n]);
    mixed[n] = x;
  }
  for (size_t j = 0; j < rows.size(); ++j) {
    const size_t order = 1 + j / static_cast<size_t>(hashing.heads_per_order);
    check(order < longest, "more heads than n-grams have");
    rows[j] = hashing.offsets[j] + static_cast<int64_t>(mixed[order] % static_cast<uint64_t>(hashing.sizes[j]));
  }
}

}  // namespace tensorfold::backend
