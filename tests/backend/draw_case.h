// Rows for draws that are hard to get right: ties, infinities, NaN, extreme temperatures, cuts that fall into tails.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "backend/draw.h"

namespace tensorfold::testing {

struct DrawCase {
  std::vector<float> logits;
  std::vector<uint32_t> mask;
  std::vector<backend::TokenCount> counts;
  std::vector<backend::LogitBias> biases;
  backend::DrawRow settings;  ///< without spans; row() adds them

  [[nodiscard]] backend::DrawRow row() const {
    backend::DrawRow row = settings;
    row.mask = mask;
    row.penalties.counts = counts;
    row.penalties.biases = biases;
    return row;
  }
};

using DrawRandom = std::mt19937_64;

template <typename T, size_t n>
T one_of(DrawRandom& random, const std::array<T, n>& values) {
  return values[random() % n];
}

inline std::vector<float> hard_logits(DrawRandom& random, size_t vocabulary) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits(vocabulary);
  std::normal_distribution<float> normal;
  const uint64_t kind = random() % 12;
  const float spread = one_of(random, std::array{0.01F, 0.5F, 3.0F, 12.0F});
  for (size_t i = 0; i < vocabulary; ++i) {
    float value = spread * normal(random);
    if (kind == 1) value = std::round(value);                   // many ties
    if (kind == 2) value = 1.25F;                               // all equal
    if (kind == 3 && random() % 4 == 0) value = std::nanf("");  // holes
    if (kind == 4 && random() % 8 != 0) value = -infinity;      // few candidates
    if (kind == 5) value = std::round(value) * 1e30F;           // ties, and noise below an ulp
    if (kind == 6) value *= 1e-40F;                             // denormal
    if (kind == 7) value = static_cast<float>(static_cast<int>(random() % 3) - 1) * 0.0F;  // zeros of both signs
    if (kind == 8) value = -27.8F - 0.001F * static_cast<float>(random() % 200);  // the end of fixed-point mass
    if (kind == 9) value = static_cast<float>(i) * 1e-3F;
    if (kind == 10) value = random() % 64 == 0 ? infinity : value;
    logits[i] = value;
  }
  if (kind == 8) logits[random() % vocabulary] = 0.0F;
  if (kind == 11) logits[random() % vocabulary] += 20.0F;
  if (random() % 40 == 0) logits.assign(vocabulary, random() % 2 == 0 ? std::nanf("") : -infinity);
  return logits;
}

/// `constraints`: with masks, penalties, biases and forced tokens.
inline DrawCase hard_case(DrawRandom& random, size_t vocabulary, bool constraints) {
  DrawCase made;
  made.logits = hard_logits(random, vocabulary);
  backend::DrawRow& row = made.settings;
  row.position = static_cast<int64_t>(random() % 300000);
  row.settings = {
      .temperature = one_of(random, std::array{0.0, -1.0, 1e-9, 1e-3, 0.3, 0.7, 1.0, 1.0, 1.7, 50.0, 1e7}),
      .top_k = one_of(random, std::array{0, 0, 0, 1, 2, 20, 64, 127, 128, 129, 600, 1024, 100000}),
      .top_p = one_of(random, std::array{0.0, 1.0, 1e-320, 0.1, 0.5, 0.8, 0.95, 0.95, 0.999, 1.0 - 0x1p-53}),
      .min_p = one_of(random, std::array{0.0, 0.0, 0.0, 1e-9, 0.05, 0.5, 1.0, 1.5}),
      .seed = random()};
  row.top_logprobs = one_of(random, std::array{-1, -1, 0, 1, 5, 20});
  if (!constraints) return made;
  if (random() % 3 == 0) {
    made.mask.resize((vocabulary + 31) / 32 - (random() % 4 == 0 && vocabulary > 64 ? 1 : 0));
    const uint64_t rare = random() % 3;
    for (uint32_t& word : made.mask) {
      word = static_cast<uint32_t>(random());
      for (uint64_t i = 0; i < rare * 2; ++i) word &= static_cast<uint32_t>(random());
    }
  }
  if (random() % 3 == 0) {
    row.penalties.repetition = one_of(random, std::array{1.0F, 1.1F, 0.5F, 2.0F});
    row.penalties.frequency = one_of(random, std::array{0.0F, 0.5F, -0.3F});
    row.penalties.presence = one_of(random, std::array{0.0F, 1.5F, -0.1F});
    const size_t step = 1 + random() % 50;
    for (size_t token = random() % step; token < vocabulary + 3; token += step) {
      made.counts.push_back(
          {static_cast<int32_t>(token), static_cast<int32_t>(random() % 3), static_cast<int32_t>(random() % 3)});
    }
    std::shuffle(made.counts.begin(), made.counts.end(), random);
  }
  if (random() % 4 == 0) {
    for (int i = 0; i < 6; ++i) {
      made.biases.push_back(
          {static_cast<int32_t>(random() % (vocabulary + 2)), one_of(random, std::array{-100.0F, 3.5F, 100.0F})});
    }
  }
  if (random() % 16 == 0) row.forced = static_cast<int32_t>(random() % vocabulary);
  return made;
}

}  // namespace tensorfold::testing
