#include "drafters/packed_matrix.h"

#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "drafters/memory_store.h"

namespace tensorfold::drafters {
namespace {

using testing::MemoryStore;
using testing::random_values;

TEST(PackedMatrix, EveryValueIsWithinHalfAStepOfTheOriginal) {
  std::mt19937 random(21);
  for (const int32_t bits : {4, 8}) {
    constexpr int64_t kOutputs = 6;
    constexpr int64_t kInputs = 192;
    const std::vector<float> values = random_values(random, kOutputs * kInputs);
    MemoryStore store;
    store.add("w", {kOutputs, kInputs}, values);
    const PackedMatrix packed({&store, 1, kOutputs, kInputs, std::nullopt, store.find("w"), nullptr, nullptr}, bits);
    const format::Linear linear = packed.linear();
    std::vector<uint32_t> words(linear.weight->bytes / 4);
    std::vector<uint16_t> scales(linear.scales->bytes / 2);
    std::vector<uint16_t> biases(linear.biases->bytes / 2);
    packed.read(*linear.weight, 0, std::as_writable_bytes(std::span(words)));
    packed.read(*linear.scales, 0, std::as_writable_bytes(std::span(scales)));
    packed.read(*linear.biases, 0, std::as_writable_bytes(std::span(biases)));
    const auto a_word = static_cast<size_t>(32 / bits);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t code = (words[i / a_word] >> (static_cast<size_t>(bits) * (i % a_word))) & ((1U << bits) - 1);
      const double scale = format::bf16_to_float(scales[i / 64]);
      const double value = scale * code + static_cast<double>(format::bf16_to_float(biases[i / 64]));
      // Half a step, and what rounding scale and bias to bf16 moves the far end by.
      const double bound = 0.5 * scale + 0.01 * std::abs(scale) * ((1 << bits) - 1) +
                           0.004 * std::abs(static_cast<double>(format::bf16_to_float(biases[i / 64])));
      ASSERT_NEAR(value, static_cast<double>(values[i]), bound) << "bits " << bits << " at " << i;
    }
  }
}

TEST(PackedMatrix, PiecesReadLikeTheWhole) {
  std::mt19937 random(2);
  MemoryStore store;
  store.add("w", {4, 64}, random_values(random, 256));
  const PackedMatrix packed({&store, 1, 4, 64, std::nullopt, store.find("w"), nullptr, nullptr}, 4);
  const format::Linear linear = packed.linear();
  std::vector<std::byte> whole(linear.weight->bytes);
  packed.read(*linear.weight, 0, whole);
  std::vector<std::byte> piece(13);
  packed.read(*linear.weight, 17, piece);
  EXPECT_EQ(std::memcmp(piece.data(), whole.data() + 17, piece.size()), 0);
}

}  // namespace
}  // namespace tensorfold::drafters
