// Sixteen fp32 lanes as one AVX-512 register. Included only where the target attribute allows the instructions.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace tensorfold::backend::cpu {

struct Avx512Lanes {
  using F = __m512;
  using I = __m512i;
  using Mask = __mmask16;

  static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1U << count) - 1U); }

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float value) { return _mm512_set1_ps(value); }
  static F load(const float* from) { return _mm512_loadu_ps(from); }
  static F load_part(const float* from, int64_t count) { return _mm512_maskz_loadu_ps(first(count), from); }
  static void store(float* to, F value) { _mm512_storeu_ps(to, value); }
  static void store_part(float* to, F value, int64_t count) { _mm512_mask_storeu_ps(to, first(count), value); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }

  static I load_integers(const void* from) { return _mm512_loadu_si512(from); }
  static I load_halves(const void* from) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  static I set_integer(uint32_t value) { return _mm512_set1_epi32(static_cast<int32_t>(value)); }
  static I bits(F value) { return _mm512_castps_si512(value); }
  static F from_bits(I value) { return _mm512_castsi512_ps(value); }
  static F to_float(I value) { return _mm512_cvtepi32_ps(value); }
  static I add_integer(I a, I b) { return _mm512_add_epi32(a, b); }
  static I both(I a, I b) { return _mm512_and_si512(a, b); }
  template <int shift>
  static I shift_left(I a) {
    return _mm512_slli_epi32(a, shift);
  }
  template <int shift>
  static I shift_right(I a) {
    return _mm512_srli_epi32(a, shift);
  }

  static Mask less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Mask is_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  static F select(Mask mask, F where_set, F otherwise) { return _mm512_mask_blend_ps(mask, otherwise, where_set); }

  static F table(float scale, float bias) {
    const F codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_fmadd_ps(codes, _mm512_set1_ps(scale), _mm512_set1_ps(bias));
  }
  static F look_up(F table, I index) { return _mm512_permutexvar_ps(index, table); }

  static float sum(F value) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  /// The same tree for sixteen vectors at once: each step adds the two halves of two vectors into one.
  static F sums(const F* values) {
    F eight[8];  // vector i: eight partial sums of value i, then of value i + 8
    for (int i = 0; i < 8; ++i) {
      eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(values[i], values[i + 8], 0x44),
                               _mm512_shuffle_f32x4(values[i], values[i + 8], 0xEE));
    }
    F four[4];  // 128-bit blocks: values i, i + 4, i + 8, i + 12
    for (int i = 0; i < 4; ++i) {
      const F low = _mm512_shuffle_f32x4(eight[i], eight[i + 4], 0x88);   // blocks i.0 (i+8).0 (i+4).0 (i+12).0
      const F high = _mm512_shuffle_f32x4(eight[i], eight[i + 4], 0xDD);  // blocks 1 of the same
      four[i] = _mm512_add_ps(low, high);
    }
    // Inside each block: lanes 0,1 + lanes 2,3, then lane 0 + lane 1.
    F two[2];
    for (int i = 0; i < 2; ++i) {
      const F low = _mm512_shuffle_ps(four[i], four[i + 2], 0x44);
      const F high = _mm512_shuffle_ps(four[i], four[i + 2], 0xEE);
      two[i] = _mm512_add_ps(low, high);
    }
    const F even = _mm512_shuffle_ps(two[0], two[1], 0x88);
    const F odd = _mm512_shuffle_ps(two[0], two[1], 0xDD);
    const F mixed = _mm512_add_ps(even, odd);
    // Block b holds values {b', b'+2, b'+1, b'+3} with b' = 0, 8, 4, 12.
    const I order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_ps(order, mixed);
  }
  /// Lanes 0 to 3 = sum(values[0..3]).
  static F sums_of_four(const F* values) {
    F eight[2];  // value i in the lower half, value i + 2 in the upper
    for (int i = 0; i < 2; ++i) {
      eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(values[i], values[i + 2], 0x44),
                               _mm512_shuffle_f32x4(values[i], values[i + 2], 0xEE));
    }
    const F four = _mm512_add_ps(_mm512_shuffle_f32x4(eight[0], eight[1], 0x88),
                                 _mm512_shuffle_f32x4(eight[0], eight[1], 0xDD));  // blocks 0, 2, 1, 3
    const F two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4E));
    const F one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xB1));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 4, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), one);
  }
  static float largest(F value) { return _mm512_reduce_max_ps(value); }
  static void prefetch(const void* address) { _mm_prefetch(static_cast<const char*>(address), _MM_HINT_T0); }
};

}  // namespace tensorfold::backend::cpu
