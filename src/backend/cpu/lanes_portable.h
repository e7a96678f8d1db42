// Sixteen fp32 lanes in plain C++: the definition of every primitive, and the level that runs anywhere.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace tensorfold::backend::cpu {

/// a * b + c with one rounding. Where the target has no such instruction it is built from double arithmetic: the
/// product of two floats is exact there, and rounding the sum to odd makes the second rounding (to float) the only one
/// that counts (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE TC 2008).
inline float fused_multiply_add(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
  return std::fma(a, b, c);
#else
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = c;
  const double sum = product + addend;
  // Knuth's exact error of the sum; NaN or infinite sums make it NaN, which the comparison below lets pass.
  const double back = sum - product;
  const double error = (product - (sum - back)) + (addend - back);
  uint64_t bits = std::bit_cast<uint64_t>(sum);
  const bool inexact = error < 0.0 || error > 0.0;
  // Towards zero when the error points there, then the last bit set: round to odd.
  const bool away = inexact && ((error < 0.0) != (sum < 0.0));
  bits -= static_cast<uint64_t>(away && (bits & 1) == 0);
  bits |= static_cast<uint64_t>(inexact);
  return static_cast<float>(std::bit_cast<double>(bits));
#endif
}

struct PortableLanes {
  struct F {
    float lane[16];
  };
  struct I {
    uint32_t lane[16];
  };
  using Mask = I;  // all ones or zero

  template <typename Function>
  static F each(Function function) {
    F result;
    for (int i = 0; i < 16; ++i) result.lane[i] = function(i);
    return result;
  }
  template <typename Function>
  static I each_integer(Function function) {
    I result;
    for (int i = 0; i < 16; ++i) result.lane[i] = function(i);
    return result;
  }

  static F zero() { return F{}; }
  static F set(float value) {
    return each([&](int) { return value; });
  }
  static F load(const float* from) {
    F result;
    std::memcpy(result.lane, from, sizeof result.lane);
    return result;
  }
  /// The first `count` lanes from memory, the others zero; 0 <= count <= 16.
  static F load_part(const float* from, int64_t count) {
    F result{};
    std::memcpy(result.lane, from, static_cast<size_t>(count) * sizeof(float));
    return result;
  }
  static void store(float* to, const F& value) { std::memcpy(to, value.lane, sizeof value.lane); }
  static void store_part(float* to, const F& value, int64_t count) {
    std::memcpy(to, value.lane, static_cast<size_t>(count) * sizeof(float));
  }

  static F add(const F& a, const F& b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F sub(const F& a, const F& b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F mul(const F& a, const F& b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F div(const F& a, const F& b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static F fma(const F& a, const F& b, const F& c) {
    return each([&](int i) { return fused_multiply_add(a.lane[i], b.lane[i], c.lane[i]); });
  }
  /// a > b ? a : b, so b where either is NaN.
  static F max(const F& a, const F& b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }

  static I load_integers(const void* from) {
    I result;
    std::memcpy(result.lane, from, sizeof result.lane);
    return result;
  }
  /// Sixteen unsigned 16-bit values, widened.
  static I load_halves(const void* from) {
    uint16_t halves[16];
    std::memcpy(halves, from, sizeof halves);
    return each_integer([&](int i) { return static_cast<uint32_t>(halves[i]); });
  }
  static I set_integer(uint32_t value) {
    return each_integer([&](int) { return value; });
  }
  static I bits(const F& value) { return std::bit_cast<I>(value); }
  static F from_bits(const I& value) { return std::bit_cast<F>(value); }
  /// Exact for values below 2^24.
  static F to_float(const I& value) {
    return each([&](int i) { return static_cast<float>(static_cast<int32_t>(value.lane[i])); });
  }
  static I add_integer(const I& a, const I& b) {
    return each_integer([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static I both(const I& a, const I& b) {
    return each_integer([&](int i) { return a.lane[i] & b.lane[i]; });
  }
  template <int shift>
  static I shift_left(const I& a) {
    return each_integer([&](int i) { return a.lane[i] << shift; });
  }
  template <int shift>
  static I shift_right(const I& a) {
    return each_integer([&](int i) { return a.lane[i] >> shift; });
  }

  /// a < b; false where either is NaN.
  static Mask less(const F& a, const F& b) {
    return each_integer([&](int i) { return a.lane[i] < b.lane[i] ? ~0U : 0U; });
  }
  static Mask is_nan(const F& a) {
    return each_integer([&](int i) { return a.lane[i] != a.lane[i] ? ~0U : 0U; });
  }
  static F select(const Mask& mask, const F& where_set, const F& otherwise) {
    return each([&](int i) { return mask.lane[i] != 0 ? where_set.lane[i] : otherwise.lane[i]; });
  }

  /// scale * q + bias for q = 0..15: what sixteen 4-bit codes of a group stand for.
  static F table(float scale, float bias) {
    return each([&](int i) { return fused_multiply_add(static_cast<float>(i), scale, bias); });
  }
  /// table[low four bits of each lane].
  static F look_up(const F& table, const I& index) {
    return each([&](int i) { return table.lane[index.lane[i] & 15U]; });
  }

  /// The fixed tree: lanes 8 apart, then 4, 2, 1.
  static float sum(const F& value) {
    float half[8];
    for (int i = 0; i < 8; ++i) half[i] = value.lane[i] + value.lane[i + 8];
    for (int i = 0; i < 4; ++i) half[i] = half[i] + half[i + 4];
    for (int i = 0; i < 2; ++i) half[i] = half[i] + half[i + 2];
    return half[0] + half[1];
  }
  /// Lane i = sum(values[i]).
  static F sums(const F* values) {
    return each([&](int i) { return sum(values[i]); });
  }
  /// Lanes 0 to 3 = sum(values[0..3]); the others are unspecified.
  static F sums_of_four(const F* values) {
    return each([&](int i) { return sum(values[i % 4]); });
  }
  /// The largest lane (no NaN inside); the order cannot matter.
  static float largest(const F& value) {
    float result = value.lane[0];
    for (int i = 1; i < 16; ++i) result = value.lane[i] > result ? value.lane[i] : result;
    return result;
  }
  static void prefetch(const void* address) { __builtin_prefetch(address); }
};

}  // namespace tensorfold::backend::cpu
