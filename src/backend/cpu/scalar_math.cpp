#include "backend/cpu/scalar_math.h"

#include <bit>
#include <cstdint>
#include <limits>

#include "backend/keyed_sampling.h"

namespace tensorfold::backend::cpu {
namespace {

/// The nearest integer, ties to even, for |x| < 2^51: adding 1.5 * 2^52 leaves no fraction bits.
double round_to_integer(double x) {
  const double magic = 6755399441055744.0;
  return (x + magic) - magic;
}

}  // namespace

double portable_log1p(double x) {
  const double y = 1.0 + x;
  if (!(y < std::numeric_limits<double>::infinity())) return y;
  const double lost = x - (y - 1.0);  // what the addition rounded away
  const auto bits = std::bit_cast<uint64_t>(y);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172: s^24 / 25 is below 2e-20.
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double sum = 0.0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / static_cast<double>(k);
  return static_cast<double>(exponent) * 0.693147180559945309417 + (2.0 * s * sum + lost / y);
}

double portable_softplus(double x) { return x > 20.0 ? x : portable_log1p(keyed::exponential(x)); }

double portable_sigmoid(double x) { return 1.0 / (1.0 + keyed::exponential(-x)); }

double portable_decay(double decay_log, double x) {
  return keyed::exponential(-keyed::exponential(decay_log) * portable_softplus(x));
}

SineCosine portable_sine_cosine(double angle) {
  const double n = round_to_integer(angle * 0.63661977236758134308);
  // pi/2 in three parts of 33, 33 and 53 bits, so that n * part is exact for n below 2^20.
  const double r = ((angle - n * 1.5707963267341256) - n * 6.077100506303966e-11) - n * 2.0222662487959506e-21;
  const double square = r * r;
  double sine = 1.0;
  for (int k = 17; k >= 3; k -= 2) sine = 1.0 - sine * square / static_cast<double>(k * (k - 1));
  sine *= r;
  double cosine = 1.0;
  for (int k = 18; k >= 2; k -= 2) cosine = 1.0 - cosine * square / static_cast<double>(k * (k - 1));
  const auto quadrant = static_cast<uint64_t>(static_cast<int64_t>(n)) & 3U;
  const double s = (quadrant & 1U) != 0 ? cosine : sine;
  const double c = (quadrant & 1U) != 0 ? sine : cosine;
  const bool flip_sine = (quadrant & 2U) != 0;
  const bool flip_cosine = ((quadrant + 1U) & 2U) != 0;
  return {static_cast<float>(flip_sine ? -s : s), static_cast<float>(flip_cosine ? -c : c)};
}

}  // namespace tensorfold::backend::cpu
