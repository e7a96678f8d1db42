// How scales of packed weights are stored (row_product.h, matrix_unit.cuh).
#pragma once

namespace tensorfold::backend::cuda {

/// 4-bit codes need no conversion: one in bits 0..3 of a bf16 is the (sub)normal number code * 2^-133, one in bits 4..7
/// is code * 2^-129. Stored scales of a tile's first 8 outputs are raised by 2^129, those of the other 8, whose codes
/// stand in bits 4..7, by 2^125, and biases are lowered by 2^4, so that one fma gives bf16(fma(code, scale, bias)) *
/// 2^-4 with one rounding. The factor goes through all sums exactly; the epilogue takes it back (kAffineFactor).
constexpr int kLowScaleExponent = 129;
constexpr int kHighScaleExponent = 125;
constexpr float kAffineFactor = 16.0F;
/// Scales must be below this for scale * 2^129 to be finite in bf16.
constexpr float kScaleLimit = 0.5F;

}  // namespace tensorfold::backend::cuda
