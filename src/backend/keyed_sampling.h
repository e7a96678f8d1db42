// The keyed draw: the token at an absolute position is a function of the row's logits, the seed, the position and the
// settings; no random-number stream exists. One source for every backend: the arithmetic below compiles for the host
// and for devices and gives the same bits on both, because it consists of single correctly rounded fp64 operations.
//
//   token(position) = argmax over the kept candidates i of  z_i + G(seed, position, i),  z_i = logit_i / max(T, 1e-6),
//   G = -ln(-ln U), U the hash of (seed, position, i): an exact draw from softmax(z) over the kept set.
//
// Which candidates are kept: order by (logit descending, id ascending); top_k; top_p; min_p (see draw_token). NaN
// counts as minus infinity; -0 equals +0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/draw.h"
#include "base/host_device.h"

namespace tensorfold::backend::keyed {

// Single roundings that no compiler may fuse. The host is built with contraction off; devices have instructions.
TENSORFOLD_HOST_DEVICE inline double multiply(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

TENSORFOLD_HOST_DEVICE inline double add(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

TENSORFOLD_HOST_DEVICE inline uint64_t bits_of(double value) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

TENSORFOLD_HOST_DEVICE inline double from_bits(uint64_t bits) {
  double value = 0.0;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr uint64_t infinity_bits = 0x7FF0000000000000;

/// e^x for any x, within 2 ulp; below -708 zero, above 709 infinity, NaN gives zero. x = k ln 2 + r, |r| <= ln 2 / 2,
/// with e^r from its Taylor series to r^13 (remainder below 5e-18).
TENSORFOLD_HOST_DEVICE inline double exponential(double x) {
  constexpr double inverse_factorials[] = {1.0 / 6227020800.0,
                                           1.0 / 479001600.0,
                                           1.0 / 39916800.0,
                                           1.0 / 3628800.0,
                                           1.0 / 362880.0,
                                           1.0 / 40320.0,
                                           1.0 / 5040.0,
                                           1.0 / 720.0,
                                           1.0 / 120.0,
                                           1.0 / 24.0,
                                           1.0 / 6.0,
                                           0.5,
                                           1.0,
                                           1.0};
  if (!(x >= -708.0)) return 0.0;
  if (x > 709.0) return from_bits(infinity_bits);
  const double scaled = multiply(x, 1.4426950408889634);
  const auto k = static_cast<int64_t>(scaled + (scaled < 0.0 ? -0.5 : 0.5));
  const auto factor = static_cast<double>(k);
  // ln 2 in two parts; the first has 32 significant bits, so that k times it is exact.
  const double r = add(add(x, multiply(factor, -0x1.62e42feep-1)), multiply(factor, -0x1.a39ef35793c76p-33));
  double sum = inverse_factorials[0];
  for (int i = 1; i < 14; ++i) sum = add(multiply(sum, r), inverse_factorials[i]);
  // Two steps, so that k = 1024 does not overflow the exponent field.
  const int64_t half = k / 2;
  const double first = from_bits(static_cast<uint64_t>(half + 1023) << 52);
  const double second = from_bits(static_cast<uint64_t>(k - half + 1023) << 52);
  return multiply(multiply(sum, first), second);
}

/// ln x for positive normal x, within 2 ulp; zero and below give minus infinity. x = m 2^e with m in [0.707, 1.414],
/// ln m = 2 artanh(s), s = (m - 1) / (m + 1), by its series to s^21 (|s| < 0.172, remainder below 1e-18).
TENSORFOLD_HOST_DEVICE inline double logarithm(double x) {
  constexpr double odd_reciprocals[] = {1.0 / 21.0, 1.0 / 19.0, 1.0 / 17.0, 1.0 / 15.0, 1.0 / 13.0,
                                        1.0 / 11.0, 1.0 / 9.0,  1.0 / 7.0,  1.0 / 5.0,  1.0 / 3.0};
  if (!(x > 0.0)) return -from_bits(infinity_bits);
  const uint64_t bits = bits_of(x);
  if (bits >= infinity_bits) return x;
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = from_bits((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
  if (m > 1.4142135623730951) {
    m = multiply(m, 0.5);
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double square = multiply(s, s);
  double series = odd_reciprocals[0];
  for (int i = 1; i < 10; ++i) series = add(multiply(series, square), odd_reciprocals[i]);
  const double twice = add(s, s);
  const double mantissa_part = add(twice, multiply(multiply(twice, square), series));
  const auto factor = static_cast<double>(exponent);
  return add(multiply(factor, 0x1.62e42feep-1), add(multiply(factor, 0x1.a39ef35793c76p-33), mantissa_part));
}

/// SplitMix64's finaliser.
TENSORFOLD_HOST_DEVICE inline uint64_t finalise(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9;
  x ^= x >> 27;
  x *= 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// The hash of a row (seed, position); one a row.
TENSORFOLD_HOST_DEVICE inline uint64_t row_key(uint64_t seed, int64_t position) {
  const uint64_t request = finalise(seed + 0x9E3779B97F4A7C15);
  return finalise(request ^ (static_cast<uint64_t>(position) * 0xD1B54A32D192ED03));
}

/// The hash of one candidate of a row.
TENSORFOLD_HOST_DEVICE inline uint64_t candidate_hash(uint64_t key, int32_t id) {
  return finalise(key ^ static_cast<uint64_t>(id));
}

/// U in (0, 1]: 53 bits; the all-ones hash rounds to 1 (and its noise is infinite, with probability 2^-53).
TENSORFOLD_HOST_DEVICE inline double uniform(uint64_t hash) {
  return add(multiply(static_cast<double>(hash >> 11), 0x1p-53), 0x1p-54);
}

/// Gumbel noise of a hash.
TENSORFOLD_HOST_DEVICE inline double gumbel(uint64_t hash) { return -logarithm(-logarithm(uniform(hash))); }

/// The seed of choice j of a request with several choices; choice 0 keeps the request's seed.
TENSORFOLD_HOST_DEVICE inline uint64_t choice_seed(uint64_t seed, uint64_t choice) {
  return choice == 0 ? seed : finalise(seed + choice);
}

TENSORFOLD_HOST_DEVICE inline double scaled_logit(float logit, double temperature) {
  return static_cast<double>(logit) / (temperature > 1e-6 ? temperature : 1e-6);
}

/// Probability mass in fixed point, 40 fractional bits; z <= top. Integer sums do not depend on their order.
TENSORFOLD_HOST_DEVICE inline int64_t fixed_mass(double z, double top) {
  const double below = z - top;
  if (!(below > -27.8)) return below == 0.0 ? int64_t{1} << 40 : 0;  // e^-27.8 < 2^-40
  return static_cast<int64_t>(multiply(exponential(below), 0x1p40));
}

/// ceil(top_p * total), with top_p in (0, 1) as the exact rational value of its bits and total in [0, 2^62].
TENSORFOLD_HOST_DEVICE inline int64_t needed_mass(double top_p, int64_t total) {
  const uint64_t bits = bits_of(top_p);
  const auto biased = static_cast<int64_t>(bits >> 52);
  const uint64_t mantissa = (bits & 0x000FFFFFFFFFFFFF) | (biased > 0 ? uint64_t{1} << 52 : 0);
  const int64_t shift = 1075 - (biased > 0 ? biased : 1);  // top_p = mantissa * 2^-shift, shift >= 53
  const auto product = static_cast<unsigned __int128>(mantissa) * static_cast<uint64_t>(total);
  if (product == 0) return 0;
  if (shift >= 120) return 1;
  const auto quotient = static_cast<int64_t>(product >> shift);
  const bool rest = (product & ((static_cast<unsigned __int128>(1) << shift) - 1)) != 0;
  return quotient + (rest ? 1 : 0);
}

/// Unsigned integers in the order of the floats (-0 just below +0: add +0.0f first where they must be equal).
TENSORFOLD_HOST_DEVICE inline uint32_t order_key(float value) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// One token's logit after the penalties of its counts (not the bias).
TENSORFOLD_HOST_DEVICE inline float penalised(float logit, const TokenCount& count, float repetition, float frequency,
                                              float presence) {
  double value = logit;
  if (count.in_prompt > 0 || count.in_reply > 0) {
    value = value > 0.0 ? value / static_cast<double>(repetition) : multiply(value, static_cast<double>(repetition));
  }
  value = add(value, -multiply(static_cast<double>(frequency), static_cast<double>(count.in_reply)));
  if (count.in_reply > 0) value = add(value, -static_cast<double>(presence));
  return static_cast<float>(value);
}

}  // namespace tensorfold::backend::keyed

namespace tensorfold::backend {

/// Draws one token; returns it and fills `out`. `logits`: one row, vocabulary wide. The order of rules: forced token;
/// penalties, bias and mask; greedy (temperature <= 0: the highest logit, lowest id among equals) or keyed:
///   top_k > 0: the first top_k of the order, then the shortest prefix whose share of their mass reaches top_p
///   (running fp64 sum in order); top_k = 0: the same over the whole vocabulary in 40-bit fixed point;
///   then only z >= z_first + ln(min_p); then the highest z + G, the earlier of the order among equals.
/// With row.top_logprobs >= 0 also fills probability, logprob and the strongest rivals, from the logits as given.
int32_t draw_token(std::span<const float> logits, const DrawRow& row, Drawn& out);

/// The natural logarithm of a logit's share of its row: `best` is the row's highest logit, `total` its fixed-point mass
/// at temperature 1. At least -9999.
float row_logprob(float logit, float best, int64_t total);

/// The candidates that draw_token would draw among, in order (for tests and drafters); greedy: one.
std::vector<int32_t> kept_candidates(std::span<const float> logits, const DrawRow& row);

/// The seed of a request that names none: the first 8 bytes of SHA-256 over "id,id,...|salt", little-endian, 63 bits.
uint64_t default_seed(std::span<const int32_t> prompt, int64_t salt = 0);

}  // namespace tensorfold::backend
