#include "format/floats.h"

#include <cstring>

#include "base/error.h"

namespace tensorfold::format {
namespace {

template <typename Stored, typename Convert>
void widen_each(std::span<const std::byte> bytes, std::span<float> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = convert(stored);
  }
}

}  // namespace

uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);  // rounds to 65536 or beyond
  if (magnitude < 0x38800000U) {
    // Below the smallest normal f16: adding 0.5 leaves the subnormal's mantissa, rounded to even, in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5F)));
  }
  const uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

void widen(DataType type, std::span<const std::byte> bytes, std::span<float> out) {
  check(is_float(type), "only f32, f16 and bf16 widen to fp32");
  check(bytes.size() >= out.size() * static_cast<size_t>(size_of(type)), "too few bytes to widen");
  switch (type) {
    case DataType::f32:
      widen_each<float>(bytes, out, [](float value) { return value; });
      break;
    case DataType::f16:
      widen_each<uint16_t>(bytes, out, f16_to_float);
      break;
    default:
      widen_each<uint16_t>(bytes, out, bf16_to_float);
      break;
  }
}

}  // namespace tensorfold::format
