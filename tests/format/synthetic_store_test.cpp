#include "format/synthetic_store.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "format/floats.h"

namespace tensorfold::format {
namespace {

std::vector<std::byte> read_all(const SyntheticStore& store, const std::string& name) {
  std::vector<std::byte> bytes(store.find(name)->bytes);
  store.read(*store.find(name), 0, bytes);
  return bytes;
}

TEST(SyntheticStore, PiecesAgreeWithTheWholeAndSeedsDiffer) {
  SyntheticStore store(7);
  SyntheticStore same(7);
  SyntheticStore other(8);
  for (SyntheticStore* each : {&store, &same, &other}) {
    each->add_linear("m", {24, 192}, AffineFormat{3, 64});
    each->add_vector("v", {77}, 1.0F, 0.1F);
  }
  std::mt19937 random(std::random_device{}());
  for (const char* name : {"m.weight", "m.scales", "m.biases", "v"}) {
    const std::vector<std::byte> whole = read_all(store, name);
    EXPECT_EQ(whole, read_all(same, name)) << name;
    EXPECT_NE(whole, read_all(other, name)) << name;
    for (int i = 0; i < 50; ++i) {
      const size_t offset = random() % whole.size();
      std::vector<std::byte> piece(random() % (whole.size() - offset) + 1);
      store.read(*store.find(name), offset, piece);
      ASSERT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + static_cast<long>(offset))) << name;
    }
  }
}

/// Decodes a packed matrix by the bit-stream rule and checks mean and variance of its values.
TEST(SyntheticStore, PackedWeightsHaveMeanZeroAndVarianceOneOverInputs) {
  for (const int32_t bits : {2, 3, 4, 5, 6, 8}) {
    const int64_t outputs = 64;
    const int64_t inputs = 512;
    SyntheticStore store(3);
    store.add_linear("m", {outputs, inputs}, AffineFormat{bits, 64});
    const std::vector<std::byte> words = read_all(store, "m.weight");
    const std::vector<std::byte> scale_bytes = read_all(store, "m.scales");
    std::vector<float> scales(static_cast<size_t>(outputs * inputs / 64));
    std::vector<float> biases(scales.size());
    widen(DataType::bf16, scale_bytes, scales);
    widen(DataType::bf16, read_all(store, "m.biases"), biases);
    double sum = 0.0;
    double squares = 0.0;
    for (int64_t i = 0; i < outputs * inputs; ++i) {
      uint32_t code = 0;
      for (int32_t b = 0; b < bits; ++b) {
        const int64_t bit = i * bits + b;
        code |= static_cast<uint32_t>((std::to_integer<int>(words[static_cast<size_t>(bit / 8)]) >> (bit % 8)) & 1)
                << b;
      }
      const double value =
          scales[static_cast<size_t>(i / 64)] * static_cast<double>(code) + biases[static_cast<size_t>(i / 64)];
      sum += value;
      squares += value * value;
    }
    const auto count = static_cast<double>(outputs * inputs);
    EXPECT_NEAR(sum / count, 0.0, 0.1 / std::sqrt(inputs)) << bits;
    EXPECT_NEAR(squares / count * inputs, 1.0, 0.15) << bits;
  }
}

}  // namespace
}  // namespace tensorfold::format
