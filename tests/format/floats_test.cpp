#include "format/floats.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace tensorfold::format {
namespace {

/// IEEE 754 binary16 by its definition.
double half_by_definition(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024.0 + mantissa, exponent - 25);
}

TEST(Floats, EveryHalfWidensToItsDefinitionAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = f16_to_float(half);
    if ((half & 0x7C00) == 0x7C00) {
      EXPECT_EQ(std::isinf(wide), (half & 0x3FF) == 0);
      EXPECT_EQ(std::isnan(wide) && std::isnan(f16_to_float(float_to_f16(wide))), (half & 0x3FF) != 0);
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), half_by_definition(half)) << bits;
    ASSERT_EQ(std::signbit(wide), (half & 0x8000) != 0) << bits;
    ASSERT_EQ(float_to_f16(wide), half) << bits;
  }
}

TEST(Floats, HalfRoundsToTheNearestWithTiesToEven) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 200000; ++i) {
    const auto lower = static_cast<uint16_t>(random() % 0x7BFF);
    const double a = half_by_definition(lower);
    const double b = half_by_definition(static_cast<uint16_t>(lower + 1));
    const double middle = (a + b) / 2;
    const auto even = static_cast<uint16_t>((lower & 1U) == 0 ? lower : lower + 1);
    ASSERT_EQ(float_to_f16(static_cast<float>(middle)), even);
    ASSERT_EQ(float_to_f16(std::nextafter(static_cast<float>(middle), 0.0F)), lower);
    ASSERT_EQ(float_to_f16(std::nextafter(static_cast<float>(middle), 1e9F)), lower + 1);
  }
  EXPECT_EQ(float_to_f16(65519.99F), 0x7BFF);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7C00);
}

TEST(Floats, Bf16RoundsToTheNearestWithTiesToEven) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 200000; ++i) {
    const auto lower = static_cast<uint16_t>(random() % 0x7F7F);
    const double middle =
        (static_cast<double>(bf16_to_float(lower)) + bf16_to_float(static_cast<uint16_t>(lower + 1))) / 2;
    const auto even = static_cast<uint16_t>((lower & 1U) == 0 ? lower : lower + 1);
    ASSERT_EQ(float_to_bf16(static_cast<float>(middle)), even);
    ASSERT_EQ(float_to_bf16(bf16_to_float(lower)), lower);
  }
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7F800001U)))));
  EXPECT_TRUE(std::isinf(bf16_to_float(float_to_bf16(std::numeric_limits<float>::max()))));
}

TEST(Floats, WidenReadsUnalignedBytes) {
  const float values[3] = {1.5F, -2.25F, 3e-5F};
  std::vector<std::byte> bytes(13, std::byte{0xFF});
  std::memcpy(bytes.data() + 1, values, 12);
  float out[3] = {};
  widen(DataType::f32, std::span(bytes).subspan(1), out);
  EXPECT_EQ(0, std::memcmp(values, out, 12));
}

}  // namespace
}  // namespace tensorfold::format
