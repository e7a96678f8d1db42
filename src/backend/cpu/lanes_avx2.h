// Sixteen fp32 lanes as two AVX registers (AVX2 and FMA). Included only where the target attribute allows them.
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

namespace tensorfold::backend::cpu {

struct Avx2Lanes {
  struct F {
    __m256 low;
    __m256 high;
  };
  struct I {
    __m256i low;
    __m256i high;
  };
  using Mask = F;  // all ones or zero

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static F load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static F load_part(const float* from, int64_t count) {
    alignas(32) float lanes[16] = {};
    std::memcpy(lanes, from, static_cast<size_t>(count) * sizeof(float));
    return load(lanes);
  }
  static void store(float* to, const F& value) {
    _mm256_storeu_ps(to, value.low);
    _mm256_storeu_ps(to + 8, value.high);
  }
  static void store_part(float* to, const F& value, int64_t count) {
    alignas(32) float lanes[16];
    store(lanes, value);
    std::memcpy(to, lanes, static_cast<size_t>(count) * sizeof(float));
  }

  static F add(const F& a, const F& b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static F sub(const F& a, const F& b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static F mul(const F& a, const F& b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static F div(const F& a, const F& b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  static F fma(const F& a, const F& b, const F& c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static F max(const F& a, const F& b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }

  static I load_integers(const void* from) {
    const auto* words = static_cast<const __m256i*>(from);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
  }
  static I load_halves(const void* from) {
    const auto* words = static_cast<const __m128i*>(from);
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(words)), _mm256_cvtepu16_epi32(_mm_loadu_si128(words + 1))};
  }
  static I set_integer(uint32_t value) {
    const __m256i all = _mm256_set1_epi32(static_cast<int32_t>(value));
    return {all, all};
  }
  static I bits(const F& value) { return {_mm256_castps_si256(value.low), _mm256_castps_si256(value.high)}; }
  static F from_bits(const I& value) { return {_mm256_castsi256_ps(value.low), _mm256_castsi256_ps(value.high)}; }
  static F to_float(const I& value) { return {_mm256_cvtepi32_ps(value.low), _mm256_cvtepi32_ps(value.high)}; }
  static I add_integer(const I& a, const I& b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
  }
  static I both(const I& a, const I& b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
  template <int shift>
  static I shift_left(const I& a) {
    return {_mm256_slli_epi32(a.low, shift), _mm256_slli_epi32(a.high, shift)};
  }
  template <int shift>
  static I shift_right(const I& a) {
    return {_mm256_srli_epi32(a.low, shift), _mm256_srli_epi32(a.high, shift)};
  }

  static Mask less(const F& a, const F& b) {
    return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
  }
  static Mask is_nan(const F& a) {
    return {_mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q), _mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q)};
  }
  static F select(const Mask& mask, const F& where_set, const F& otherwise) {
    return {_mm256_blendv_ps(otherwise.low, where_set.low, mask.low),
            _mm256_blendv_ps(otherwise.high, where_set.high, mask.high)};
  }

  /// Eight entries fit a register: the pair of halves is the table, and bit 3 of a code picks between them.
  static F table(float scale, float bias) {
    const __m256 codes = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 s = _mm256_set1_ps(scale);
    const __m256 b = _mm256_set1_ps(bias);
    return {_mm256_fmadd_ps(codes, s, b), _mm256_fmadd_ps(_mm256_add_ps(codes, _mm256_set1_ps(8)), s, b)};
  }
  static __m256 look_up_half(const F& table, __m256i index) {
    const __m256 small = _mm256_permutevar8x32_ps(table.low, index);
    const __m256 large = _mm256_permutevar8x32_ps(table.high, index);
    return _mm256_blendv_ps(small, large, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
  }
  static F look_up(const F& table, const I& index) {
    return {look_up_half(table, index.low), look_up_half(table, index.high)};
  }

  static float sum_eight(__m256 eight) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float sum(const F& value) { return sum_eight(_mm256_add_ps(value.low, value.high)); }
  /// The same tree for eight vectors at once.
  static __m256 sums_of_eight(const F* values) {
    __m256 four[4];  // blocks: value i, value i + 4
    for (int i = 0; i < 4; ++i) {
      const __m256 a = _mm256_add_ps(values[i].low, values[i].high);
      const __m256 b = _mm256_add_ps(values[i + 4].low, values[i + 4].high);
      four[i] = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    }
    __m256 two[2];  // lanes in a block: value i twice, value i + 2 twice
    for (int i = 0; i < 2; ++i) {
      two[i] =
          _mm256_add_ps(_mm256_shuffle_ps(four[i], four[i + 2], 0x44), _mm256_shuffle_ps(four[i], four[i + 2], 0xEE));
    }
    const __m256 mixed =
        _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xDD));
    return _mm256_permute_ps(mixed, 0xD8);  // a block holds values 0, 2, 1, 3 of its four
  }
  static F sums(const F* values) { return {sums_of_eight(values), sums_of_eight(values + 8)}; }
  static F sums_of_four(const F* values) {
    const F eight[8] = {values[0], values[1], values[2], values[3], values[0], values[1], values[2], values[3]};
    return {sums_of_eight(eight), _mm256_setzero_ps()};
  }
  static float largest(const F& value) {
    const __m256 eight = _mm256_max_ps(value.low, value.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  static void prefetch(const void* address) { _mm_prefetch(static_cast<const char*>(address), _MM_HINT_T0); }
};

}  // namespace tensorfold::backend::cpu
