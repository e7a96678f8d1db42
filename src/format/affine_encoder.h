// Packing weights as MLX packs them: affine codes, scales and biases of one group after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "format/tensor_store.h"

namespace tensorfold::format {

/// One row's codes and pairs. `codes`: inputs * bits / 8 bytes, a little-endian stream of `bits` each; `scales` and
/// `biases`: one a group. For every group of weights w, in fp32 (MLX's rule, specs: MLX format 5):
///   lo, hi = smallest and largest w;  s = max((hi - lo) / (2^bits - 1), 1e-7), edge = lo where |lo| > |hi|; else s =
///   -s, edge = hi;  q0 = round(edge / s); where that is not 0, s = edge / q0 and the bias is edge, else the bias is 0;
///   code = clamp(round((w - bias) / s), 0, 2^bits - 1), ties to even.
/// The codes belong to these pairs, not to what rounding them for a file makes of them.
void encode_affine_row(std::span<const float> row, const AffineFormat& format, std::span<std::byte> codes,
                       std::span<float> scales, std::span<float> biases);

/// Narrows to `type` (f32, f16 or bf16), nearest, ties to even; out holds values.size() elements of it.
void narrow(DataType type, std::span<const float> values, std::span<std::byte> out);

}  // namespace tensorfold::format
