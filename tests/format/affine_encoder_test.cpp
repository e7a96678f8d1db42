#include "format/affine_encoder.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "format/floats.h"

namespace tensorfold::format {
namespace {

struct Encoded {
  std::vector<std::byte> codes;
  std::vector<float> scales, biases;
};

Encoded encode(const std::vector<float>& row, const AffineFormat& format) {
  Encoded result;
  result.codes.resize(row.size() * static_cast<size_t>(format.bits) / 8);
  result.scales.resize(row.size() / static_cast<size_t>(format.group_size));
  result.biases.resize(result.scales.size());
  encode_affine_row(row, format, result.codes, result.scales, result.biases);
  return result;
}

/// Code number i of a little-endian stream of `bits` each.
uint32_t code_at(const Encoded& encoded, int32_t bits, size_t i) {
  uint32_t code = 0;
  for (int32_t bit = 0; bit < bits; ++bit) {
    const size_t place = i * static_cast<size_t>(bits) + static_cast<size_t>(bit);
    const auto byte = std::to_integer<uint32_t>(encoded.codes[place / 8]);
    code |= ((byte >> (place % 8)) & 1U) << bit;
  }
  return code;
}

// The worked example of the format's specification.
TEST(AffineEncoder, FollowsMlxsRule) {
  std::vector<float> row;
  for (int i = 0; i < 32; ++i) row.push_back(static_cast<float>((37 * i) % 64 - 20) / 64.0F);
  const Encoded encoded = encode(row, {4, 32});
  EXPECT_EQ(float_to_bf16(encoded.scales[0]), 0xBD8A);
  EXPECT_EQ(float_to_bf16(encoded.biases[0]), 0x3F2C);
  uint32_t words[4];
  std::memcpy(words, encoded.codes.data(), sizeof words);
  EXPECT_EQ(words[0], 0xE81A4C6FU);
  EXPECT_EQ(words[1], 0x5D7193C5U);
  EXPECT_EQ(words[2], 0xA4D6092BU);
  EXPECT_EQ(words[3], 0x1A3C6E82U);
}

TEST(AffineEncoder, EveryWidthComesBackWithinHalfAStep) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const int32_t bits : {2, 3, 4, 5, 6, 8}) {
    for (const int32_t group : {32, 64, 128}) {
      std::vector<float> row(256);
      for (float& value : row) value = normal(random);
      const Encoded encoded = encode(row, {bits, group});
      for (size_t i = 0; i < row.size(); ++i) {
        const size_t g = i / static_cast<size_t>(group);
        const float back = encoded.scales[g] * static_cast<float>(code_at(encoded, bits, i)) + encoded.biases[g];
        // The far end may lie up to half a step beyond the codes, since the near end and zero are hit exactly.
        EXPECT_LE(std::abs(back - row[i]), 1.01F * std::abs(encoded.scales[g])) << bits << " bits, groups of " << group;
      }
    }
  }
}

TEST(AffineEncoder, ConstantGroupsAreExact) {
  for (const float value : {0.0F, 0.375F, -2.5F}) {
    const Encoded encoded = encode(std::vector<float>(64, value), {4, 64});
    for (size_t i = 0; i < 64; ++i) {
      const auto code = static_cast<float>(code_at(encoded, 4, i));
      EXPECT_NEAR(encoded.scales[0] * code + encoded.biases[0], value, 2e-6F);
    }
  }
}

}  // namespace
}  // namespace tensorfold::format
