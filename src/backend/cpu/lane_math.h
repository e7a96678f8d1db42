// exp, sigmoid and SiLU on sixteen lanes, and reductions over rows: one polynomial, one order, so that every level
// gives the same bits. Templates over the lanes; included only between a level's target attributes.
#pragma once

#include <cstdint>

namespace tensorfold::backend::cpu {

template <typename L>
struct LaneMath {
  using F = typename L::F;

  /// e^x to about 1 unit in the last place: x = n ln 2 + r with |r| <= ln(2)/2, Taylor to r^7 (remainder below 6e-9).
  /// Below -87: 0. Above 88: infinity. NaN stays NaN.
  static F exp(F x) {
    const F magic = L::set(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
    const F shifted = L::fma(x, L::set(1.44269504F), magic);
    const F n = L::sub(shifted, magic);
    F r = L::fma(n, L::set(-0.693359375F), x);  // ln 2 in two parts; the first is short, so n * it is exact
    r = L::fma(n, L::set(2.12194440e-4F), r);
    F p = L::set(1.0F / 5040.0F);
    p = L::fma(p, r, L::set(1.0F / 720.0F));
    p = L::fma(p, r, L::set(1.0F / 120.0F));
    p = L::fma(p, r, L::set(1.0F / 24.0F));
    p = L::fma(p, r, L::set(1.0F / 6.0F));
    p = L::fma(p, r, L::set(0.5F));
    p = L::fma(p, r, L::set(1.0F));
    p = L::fma(p, r, L::set(1.0F));
    F result = L::from_bits(L::add_integer(L::bits(p), L::template shift_left<23>(L::bits(shifted))));
    result = L::select(L::less(x, L::set(-87.0F)), L::zero(), result);
    result = L::select(L::less(L::set(88.0F), x), L::set(__builtin_inff()), result);
    return L::select(L::is_nan(x), x, result);
  }

  static F one_plus_exp_minus(F x) { return L::add(L::set(1.0F), exp(L::sub(L::zero(), x))); }
  static F sigmoid(F x) { return L::div(L::set(1.0F), one_plus_exp_minus(x)); }
  static F silu(F x) { return L::div(x, one_plus_exp_minus(x)); }
  /// (1 - e^(-2|x|)) / (1 + e^(-2|x|)) with the sign of x: within 1e-7 absolutely.
  static F tanh(F x) {
    const F negative = L::sub(L::zero(), x);
    const F e = exp(L::mul(L::set(-2.0F), L::max(x, negative)));
    const F size = L::div(L::sub(L::set(1.0F), e), L::add(L::set(1.0F), e));
    return L::select(L::less(x, L::zero()), L::sub(L::zero(), size), size);
  }
  /// x / 2 (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3); since (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)).
  static F gelu_tanh(F x) {
    const F cubic = L::fma(L::mul(L::set(0.044715F), L::mul(x, x)), x, x);
    return L::div(x, one_plus_exp_minus(L::mul(L::set(1.59576912F), cubic)));
  }

  /// Calls body(offset, count) for every block of sixteen in [0, n); the last may be shorter.
  template <typename Body>
  static void blocks(int64_t n, Body body) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) body(i, int64_t{16});
    if (i < n) body(i, n - i);
  }
  static F load(const float* from, int64_t count) { return count == 16 ? L::load(from) : L::load_part(from, count); }
  static void store(float* to, F value, int64_t count) {
    if (count == 16) {
      L::store(to, value);
    } else {
      L::store_part(to, value, count);
    }
  }

  /// Lane l sums a[k] * b[k] over k = l mod 16 in k order; then the fixed tree.
  static float dot(const float* a, const float* b, int64_t n) {
    F sum = L::zero();
    blocks(n, [&](int64_t i, int64_t count) { sum = L::fma(load(a + i, count), load(b + i, count), sum); });
    return L::sum(sum);
  }
};

}  // namespace tensorfold::backend::cpu
