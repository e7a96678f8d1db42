// Hashed n-gram embeddings: rows of a table that is far too large to be loaded, and the branch that adds them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cache.h"
#include "backend/plan.h"
#include "backend/tensors.h"

namespace tensorfold::backend {

/// Which rows of the table belong to a position (Flash Next spec 3.3). With c[0] the row's own token and c[s] the token
/// s places before it, replaced by end_token where the sequence has not begun or an end_token stands at places 1..s:
///   x[n] = c[0] m[0] xor ... xor c[n] m[n] (64-bit words; m: multipliers)
/// and head j looks up offsets[j] + x[1 + j / heads_per_order] mod sizes[j]: first the 2-grams' heads, then the
/// 3-grams'.
struct NgramHashing {
  std::vector<int64_t> multipliers;  ///< one a token of the longest n-gram; at most kHistoryTokens + 1
  std::vector<int64_t> sizes;        ///< rows of a head
  std::vector<int64_t> offsets;      ///< its first row
  int32_t heads_per_order = 1;
  int32_t end_token = 0;
};

/// The table rows of plan row `row`, one a head. Looks at the plan alone: the row's path in it, then the sequence's
/// history.
void hash_ngrams(const NgramHashing& hashing, const Plan& plan, int32_t row, std::span<int64_t> rows);

/// Rows that stay where the checkpoint has them and are read when they are looked up.
class NgramTable {
 public:
  virtual ~NgramTable() = default;
  /// Values of a lookup: heads times row width.
  [[nodiscard]] virtual int64_t width() const = 0;
};

/// What an n-gram embedding adds to the streams h[s] of a layer, with the looked-up values' products key and value
/// (spec 3.3, 2 to 8):
///   k[s] = RMSNorm(key[s]) key_norm[s];  q[s] = RMSNorm(h[s]) query_norm[s];  r = <k[s], q[s]> / sqrt(hidden)
///   g[s] = sigmoid(sign(r) sqrt(max(|r|, 1e-6))) value (gate in double precision);  f[s] = RMSNorm(g[s]) conv_norm[s]
///   h += g + silu(sum over taps, oldest first, of convolution[tap] * f at the position tap * dilation before)
/// The state of a sequence: the f rows that its next positions look back to. A row continues from its parent's rows.
struct NgramBranch {
  Cache* cache = nullptr;
  int32_t entry = 0;                    ///< a DilatedConvolutionShape of S * hidden channels
  Tensor streams;                       ///< h, [S][hidden], added to
  Tensor key;                           ///< [S][hidden]
  Tensor value;                         ///< [hidden]
  const Vector* key_norm = nullptr;     ///< [S][hidden]
  const Vector* query_norm = nullptr;   ///< [S][hidden]
  const Vector* conv_norm = nullptr;    ///< [S][hidden]
  float epsilon = 0.0F;                 ///< of the three
  const Vector* convolution = nullptr;  ///< [S * hidden][kernel], tap kernel-1 multiplies the current row
};

}  // namespace tensorfold::backend
