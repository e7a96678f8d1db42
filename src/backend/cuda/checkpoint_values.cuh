// Reading single values of checkpoint tensors on the device: w = bf16(fma(code, scale, bias)), one rounding.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/pack.h"

namespace tensorfold::backend::cuda {

__device__ inline float scalar_at(const void* values, ScalarType type, int64_t index) {
  switch (type) {
    case ScalarType::f32:
      return static_cast<const float*>(values)[index];
    case ScalarType::f16:
      return __half2float(static_cast<const __half*>(values)[index]);
    case ScalarType::bf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(values)[index]);
  }
  return 0.0F;
}

/// The double rounded once to bf16: cut to fp32 with the lost part kept as a sticky last bit, then to nearest even.
__device__ inline __nv_bfloat16 round_once(double value) {
  float cut = __double2float_rz(value);
  if (static_cast<double>(cut) != value) cut = __uint_as_float(__float_as_uint(cut) | 1U);
  return __float2bfloat16_rn(cut);
}

/// Code `k` of a row: `bits` bits, packed from the low end of little-endian words.
__device__ inline uint32_t code_at(const uint32_t* row, int bits, int k) {
  const int bit = k * bits;
  const int word = bit / 32;
  const int shift = bit % 32;
  uint64_t window = row[word];
  if (shift + bits > 32) window |= static_cast<uint64_t>(row[word + 1]) << 32;
  return static_cast<uint32_t>(window >> shift) & ((1U << bits) - 1U);
}

/// Weight (row, k) of a source.
__device__ inline __nv_bfloat16 weight_at(const PackSource& s, int64_t row, int k) {
  if (s.codes == nullptr) return round_once(static_cast<double>(scalar_at(s.values, s.type, row * s.inputs + k)));
  const uint32_t code = code_at(s.codes + row * (static_cast<int64_t>(s.inputs) * s.bits / 32), s.bits, k);
  const int64_t group = row * (s.inputs / s.group_size) + k / s.group_size;
  const double scale = static_cast<double>(scalar_at(s.scales, s.type, group));
  const double bias = static_cast<double>(scalar_at(s.biases, s.type, group));
  return round_once(__fma_rn(static_cast<double>(code), scale, bias));
}

}  // namespace tensorfold::backend::cuda
