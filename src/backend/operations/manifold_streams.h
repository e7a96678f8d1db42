// Several residual streams mixed by a doubly stochastic matrix a row (manifold-constrained hyper-connections;
// GLM-5.3-Flash spec 6.2).
#pragma once

#include <cstdint>

#include "backend/tensors.h"

namespace tensorfold::backend {

/// weights = read [S], write [S], mix [S][S] of S streams from raw = [S] + [S] + [S][S] products of the normed streams:
///   read_s = sigmoid(raw scale[0] + base) + epsilon;  write_s = 2 sigmoid(raw scale[1] + base);
///   mix: rows by softmax + epsilon, then columns / (sum + epsilon); `rounds` - 1 times rows, then columns likewise.
/// In double precision, rounded once. In place is allowed.
struct StreamWeights {
  Tensor raw;                     ///< [2S + S S]
  const Vector* base = nullptr;   ///< [2S + S S]
  const Vector* scale = nullptr;  ///< [3]
  int32_t streams = 0;
  float epsilon = 0.0F;
  int32_t rounds = 1;
  Tensor weights;  ///< [2S + S S]
};

/// output = sum over s of read_s stream_s: a product, then fma in stream order.
struct StreamRead {
  Tensor streams;  ///< [S][width]
  Tensor weights;  ///< of StreamWeights
  Tensor output;   ///< [width]
};

/// stream_t = write_t branch + sum over s of mix[s][t] stream_s, in place: the sum as StreamRead, then one fma.
struct StreamWrite {
  Tensor streams;  ///< [S][width]
  Tensor weights;
  Tensor branch;  ///< [width]
};

}  // namespace tensorfold::backend
