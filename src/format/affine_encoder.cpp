#include "format/affine_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "format/floats.h"

namespace tensorfold::format {
namespace {

struct Pair {
  float scale;
  float bias;
};

Pair pair_of(std::span<const float> group, float most) {
  const auto [low, high] = std::minmax_element(group.begin(), group.end());
  float scale = std::max((*high - *low) / most, 1e-7F);
  float edge = *low;
  if (!(std::abs(*low) > std::abs(*high))) {
    scale = -scale;
    edge = *high;
  }
  const float steps = std::nearbyint(edge / scale);
  if (steps != 0.0F) return {edge / steps, edge};
  return {scale, 0.0F};
}

/// Appends codes of `bits` bits to bytes, low bits first.
class BitWriter {
 public:
  BitWriter(std::span<std::byte> out, int32_t bits) : out_(out), bits_(bits) {}
  void put(uint32_t code) {
    held_ |= code << count_;
    count_ += bits_;
    for (; count_ >= 8; count_ -= 8) {
      out_[next_++] = static_cast<std::byte>(held_ & 0xFFU);
      held_ >>= 8;
    }
  }

 private:
  std::span<std::byte> out_;
  int32_t bits_;
  uint32_t held_ = 0;
  int32_t count_ = 0;
  size_t next_ = 0;
};

}  // namespace

void encode_affine_row(std::span<const float> row, const AffineFormat& format, std::span<std::byte> codes,
                       std::span<float> scales, std::span<float> biases) {
  const auto group_size = static_cast<size_t>(format.group_size);
  check(row.size() % group_size == 0 && scales.size() == row.size() / group_size && biases.size() == scales.size() &&
            codes.size() == row.size() * static_cast<size_t>(format.bits) / 8,
        "a row that does not fit its packing");
  const float most = static_cast<float>((1U << format.bits) - 1U);
  BitWriter writer(codes, format.bits);
  for (size_t g = 0; g < scales.size(); ++g) {
    const std::span<const float> group = row.subspan(g * group_size, group_size);
    const Pair pair = pair_of(group, most);
    scales[g] = pair.scale;
    biases[g] = pair.bias;
    for (const float weight : group) {
      const float code = std::nearbyint((weight - pair.bias) / pair.scale);
      writer.put(static_cast<uint32_t>(std::clamp(code, 0.0F, most)));
    }
  }
}

void narrow(DataType type, std::span<const float> values, std::span<std::byte> out) {
  check(is_float(type) && out.size() == values.size() * static_cast<size_t>(size_of(type)),
        "narrowing to another size");
  if (type == DataType::f32) {
    std::memcpy(out.data(), values.data(), out.size());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = type == DataType::bf16 ? float_to_bf16(values[i]) : float_to_f16(values[i]);
    std::memcpy(out.data() + 2 * i, &half, 2);
  }
}

}  // namespace tensorfold::format
