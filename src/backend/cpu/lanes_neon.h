// Sixteen fp32 lanes as four NEON registers (64-bit Arm, where they are part of the base architecture).
#pragma once

#include <cstdint>
#include <cstring>

#include <arm_neon.h>

namespace tensorfold::backend::cpu {

struct NeonLanes {
  struct F {
    float32x4_t part[4];
  };
  struct I {
    uint32x4_t part[4];
  };
  using Mask = I;  // all ones or zero

  template <typename Function>
  static F each(Function function) {
    return {{function(0), function(1), function(2), function(3)}};
  }
  template <typename Function>
  static I each_integer(Function function) {
    return {{function(0), function(1), function(2), function(3)}};
  }

  static F zero() { return set(0.0F); }
  static F set(float value) {
    return each([&](int) { return vdupq_n_f32(value); });
  }
  static F load(const float* from) {
    return each([&](int i) { return vld1q_f32(from + i * 4); });
  }
  static F load_part(const float* from, int64_t count) {
    float lanes[16] = {};
    std::memcpy(lanes, from, static_cast<size_t>(count) * sizeof(float));
    return load(lanes);
  }
  static void store(float* to, const F& value) {
    for (int i = 0; i < 4; ++i) vst1q_f32(to + i * 4, value.part[i]);
  }
  static void store_part(float* to, const F& value, int64_t count) {
    float lanes[16];
    store(lanes, value);
    std::memcpy(to, lanes, static_cast<size_t>(count) * sizeof(float));
  }

  static F add(const F& a, const F& b) {
    return each([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
  }
  static F sub(const F& a, const F& b) {
    return each([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
  }
  static F mul(const F& a, const F& b) {
    return each([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
  }
  static F div(const F& a, const F& b) {
    return each([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
  }
  static F fma(const F& a, const F& b, const F& c) {
    return each([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
  }
  /// a > b ? a : b, as the other levels have it (NEON's own maximum treats NaN and zeros differently).
  static F max(const F& a, const F& b) {
    return each([&](int i) { return vbslq_f32(vcgtq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
  }

  static I load_integers(const void* from) {
    const auto* bytes = static_cast<const uint8_t*>(from);
    return each_integer([&](int i) { return vreinterpretq_u32_u8(vld1q_u8(bytes + i * 16)); });
  }
  static I load_halves(const void* from) {
    const auto* bytes = static_cast<const uint8_t*>(from);
    return each_integer([&](int i) { return vmovl_u16(vreinterpret_u16_u8(vld1_u8(bytes + i * 8))); });
  }
  static I set_integer(uint32_t value) {
    return each_integer([&](int) { return vdupq_n_u32(value); });
  }
  static I bits(const F& value) {
    return each_integer([&](int i) { return vreinterpretq_u32_f32(value.part[i]); });
  }
  static F from_bits(const I& value) {
    return each([&](int i) { return vreinterpretq_f32_u32(value.part[i]); });
  }
  static F to_float(const I& value) {
    return each([&](int i) { return vcvtq_f32_u32(value.part[i]); });
  }
  static I add_integer(const I& a, const I& b) {
    return each_integer([&](int i) { return vaddq_u32(a.part[i], b.part[i]); });
  }
  static I both(const I& a, const I& b) {
    return each_integer([&](int i) { return vandq_u32(a.part[i], b.part[i]); });
  }
  template <int shift>
  static I shift_left(const I& a) {
    return each_integer([&](int i) { return vshlq_n_u32(a.part[i], shift); });
  }
  template <int shift>
  static I shift_right(const I& a) {
    if constexpr (shift == 0) {
      return a;  // the instruction's shifts begin at 1
    } else {
      return each_integer([&](int i) { return vshrq_n_u32(a.part[i], shift); });
    }
  }

  static Mask less(const F& a, const F& b) {
    return each_integer([&](int i) { return vcltq_f32(a.part[i], b.part[i]); });
  }
  static Mask is_nan(const F& a) {
    return each_integer([&](int i) { return vmvnq_u32(vceqq_f32(a.part[i], a.part[i])); });
  }
  static F select(const Mask& mask, const F& where_set, const F& otherwise) {
    return each([&](int i) { return vbslq_f32(mask.part[i], where_set.part[i], otherwise.part[i]); });
  }

  /// No table of sixteen floats fits one look-up instruction: scale and bias stand in the first two parts, and a
  /// look-up is the conversion and the same fma that would have filled the table.
  static F table(float scale, float bias) {
    return {{vdupq_n_f32(scale), vdupq_n_f32(bias), vdupq_n_f32(0.0F), vdupq_n_f32(0.0F)}};
  }
  static F look_up(const F& table, const I& index) {
    const uint32x4_t low = vdupq_n_u32(15);
    return each(
        [&](int i) { return vfmaq_f32(table.part[1], vcvtq_f32_u32(vandq_u32(index.part[i], low)), table.part[0]); });
  }

  static float sum(const F& value) {
    const float32x4_t low = vaddq_f32(value.part[0], value.part[2]);
    const float32x4_t high = vaddq_f32(value.part[1], value.part[3]);
    const float32x4_t four = vaddq_f32(low, high);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }
  static F sums(const F* values) {
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = sum(values[i]);
    return load(lanes);
  }
  static F sums_of_four(const F* values) {
    float lanes[16] = {};
    for (int i = 0; i < 4; ++i) lanes[i] = sum(values[i]);
    return load(lanes);
  }
  static float largest(const F& value) {
    const F folded = max(value, {{value.part[2], value.part[3], value.part[0], value.part[1]}});
    float lanes[16];
    store(lanes, folded);
    float result = lanes[0];
    for (int i = 1; i < 8; ++i) result = lanes[i] > result ? lanes[i] : result;
    return result;
  }
  static void prefetch(const void* address) { __builtin_prefetch(address); }
};

}  // namespace tensorfold::backend::cpu
