// Residuals of several streams, stream-major: [streams][hidden] (hyper-connections).
#pragma once

#include <cstdint>

#include "backend/tensors.h"

namespace tensorfold::backend {

/// output = the mean of the input's output.width wide streams: their sum in stream order, times 1 / streams.
struct MeanStreams {
  Tensor input;
  Tensor output;
};

/// The read side of a gated low-rank hyper-connection (Flash Next spec 3.2), for each row with streams h[s]:
///   n[s] = RMSNorm(h[s]) * norm[s];  low = silu(D n / S);  u = sigmoid(U low)
///   output = (sum over s in order of u[s] * n[s]) * 1 / S
///   gates[s] = 2 sigmoid((B n)[s] / S), worked out in double precision
/// The products have the arithmetic of Project; silu(x) = x * sigmoid(x).
struct HyperConnectionRead {
  Tensor streams;                    ///< h, [S][hidden]
  const Vector* norm = nullptr;      ///< [S][hidden]
  float epsilon = 0.0F;              ///< of that norm
  const Projection* down = nullptr;  ///< D, and B stacked below it where gates are wanted: [rank (+ S)][S * hidden]
  const Projection* up = nullptr;    ///< U, [S * hidden][rank]
  Tensor output;                     ///< [hidden]
  Tensor gates;                      ///< [S]; no buffer: none
};

/// Its write side: streams[s] = fma(gates[s], branch, streams[s]).
struct HyperConnectionWrite {
  Tensor streams;  ///< [S][hidden]
  Tensor branch;   ///< [hidden]
  Tensor gates;    ///< [S]
};

}  // namespace tensorfold::backend
