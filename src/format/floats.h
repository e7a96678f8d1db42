// The 16-bit float types of checkpoints and fp32, exactly as IEEE 754 (f16) and the top half of fp32 (bf16) define
// them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/host_device.h"
#include "format/tensor_store.h"

namespace tensorfold::format {

TENSORFOLD_HOST_DEVICE inline float bf16_to_float(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

/// Nearest bf16, ties to even; a NaN stays a (quiet) NaN.
TENSORFOLD_HOST_DEVICE inline uint16_t float_to_bf16(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// Exact, subnormals, infinities and NaN included.
inline float f16_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

/// Nearest f16, ties to even; too large becomes infinity, a NaN stays a NaN.
uint16_t float_to_f16(float value);

/// Widens `out.size()` values of type f32, f16 or bf16 that lie (unaligned, little-endian) in `bytes`.
/// Other types and too few bytes break an invariant.
void widen(DataType type, std::span<const std::byte> bytes, std::span<float> out);

/// Whether `widen` takes the type.
inline bool is_float(DataType type) { return type == DataType::f32 || type == DataType::f16 || type == DataType::bf16; }

}  // namespace tensorfold::format
