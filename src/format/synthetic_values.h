// The arithmetic of synthetic weights (synthetic_store.h), one source for the host and for devices: eight bytes of a
// tensor from their place alone.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "format/floats.h"

namespace tensorfold::format {

/// How the bytes of a tensor that no file holds are made.
struct SyntheticTensor {
  enum class Content : int32_t { words, scales, biases, uniform };
  Content content = Content::uniform;
  uint64_t key = 0;     ///< of the module, so that scales and biases of a group belong together
  float center = 0.0F;  ///< uniform: center and spread; scales: the scale in the middle, biases: codes to the middle
  float spread = 0.0F;
};

namespace synthetic {

constexpr uint64_t kStep = 0x9E3779B97F4A7C15ULL;

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits that looks random, so value `i` of a
/// tensor can be made without the values before it.
TENSORFOLD_HOST_DEVICE inline uint64_t mix(uint64_t state) {
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ULL;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBULL;
  return state ^ (state >> 31);
}

TENSORFOLD_HOST_DEVICE inline uint64_t random_bits(uint64_t key, uint64_t index) {
  return mix(key + (index + 1) * kStep);
}

/// Uniform in [-1, 1).
TENSORFOLD_HOST_DEVICE inline float random_unit(uint64_t key, uint64_t index) {
  return static_cast<float>(static_cast<int64_t>(random_bits(key, index)) >> 40) * 0x1p-23F;
}

/// Value `index` of a tensor of bf16 values. Contraction is off on both sides.
TENSORFOLD_HOST_DEVICE inline uint16_t value_of(const SyntheticTensor& tensor, uint64_t index) {
  const float unit = random_unit(tensor.key, index);
  if (tensor.content == SyntheticTensor::Content::uniform) return float_to_bf16(tensor.center + tensor.spread * unit);
  const float sign = (random_bits(tensor.key, index) & 1U) != 0 ? 1.0F : -1.0F;
  const uint16_t scale = float_to_bf16(sign * tensor.center * (1.0F + 0.25F * unit));
  // The bias centres the codes on the scale as it was rounded, so that a group's mean is near zero.
  return tensor.content == SyntheticTensor::Content::scales ? scale
                                                            : float_to_bf16(-bf16_to_float(scale) * tensor.spread);
}

/// Bytes [8 * block, 8 * block + 8), little-endian.
TENSORFOLD_HOST_DEVICE inline uint64_t block_of(const SyntheticTensor& tensor, uint64_t block) {
  if (tensor.content == SyntheticTensor::Content::words) return random_bits(tensor.key, block);
  uint64_t bits = 0;
  for (uint64_t i = 0; i < 4; ++i) bits |= static_cast<uint64_t>(value_of(tensor, block * 4 + i)) << (16 * i);
  return bits;
}

}  // namespace synthetic
}  // namespace tensorfold::format
