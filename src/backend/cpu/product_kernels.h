// Matrix products. The order of every dot product, whatever the level and the number of rows: slices of kSliceInputs
// inputs in order; inside a slice lane l sums w[k] x[k] over k = l mod 16 with fma in k order; lanes by the fixed tree.
// Dequantised weight: fma(code, scale, bias).
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "backend/cpu/kernels.h"

namespace tensorfold::backend::cpu {

template <typename L>
struct ProductKernels {
  using F = typename L::F;
  using I = typename L::I;
  /// How far ahead of the codes the next ones are asked for.
  static constexpr int64_t kPrefetchBytes = 2048;
  static constexpr int64_t kPanelPrefetch = 512;  // floats

  /// The scales (index 0..) and biases of a slice as fp32, [2][kTileOutputs][groups].
  static const float* widen_pairs(const PackedMatrix& matrix, const std::byte* from, int64_t groups, float* to) {
    if (matrix.wide_pairs) return reinterpret_cast<const float*>(from);
    const int64_t count = 2 * kTileOutputs * groups;
    for (int64_t i = 0; i < count; i += 16) {  // the pairs' room is a multiple of 64 bytes
      L::store(to + i, L::from_bits(L::template shift_left<16>(L::load_halves(from + i * 2))));
    }
    return to;
  }

  template <int group>
  static void unpack_nibbles(const PackedMatrix& matrix, const std::byte* slice, int64_t inputs, float* panel) {
    alignas(64) float room[2 * kTileOutputs * (kSliceInputs / 32) + 16];
    const int64_t groups = inputs / group;
    const float* scales = widen_pairs(matrix, slice, groups, room);
    const float* biases = scales + kTileOutputs * groups;
    const std::byte* codes = slice + matrix.pair_bytes(inputs);
    for (int64_t chunk = 0; chunk < inputs / 128; ++chunk) {
      for (int64_t o = 0; o < kTileOutputs; ++o) {
        const I word = L::load_integers(codes + (chunk * kTileOutputs + o) * 64);
        float* to = panel + (chunk * 8 * kTileOutputs + o) * 16;
        F table;
        const auto put = [&]<int place>() {
          if constexpr (place * 16 % group == 0) {
            const int64_t g = o * groups + (chunk * 128 + place * 16) / group;
            table = L::table(scales[g], biases[g]);
          }
          L::store(to + place * kTileOutputs * 16, L::look_up(table, L::template shift_right<place * 4>(word)));
        };
        put.template operator()<0>();
        put.template operator()<1>();
        put.template operator()<2>();
        put.template operator()<3>();
        put.template operator()<4>();
        put.template operator()<5>();
        put.template operator()<6>();
        put.template operator()<7>();
      }
    }
  }

  /// sums[i] = the fixed tree over the lanes of vector i; `count` is a multiple of 4.
  template <int count>
  static void add_lanes(const F* lanes, float* sums) {
    for (int i = 0; i + 16 <= count; i += 16) L::store(sums + i, L::sums(lanes + i));
    for (int i = count / 16 * 16; i < count; i += 4) L::store_part(sums + i, L::sums_of_four(lanes + i), 4);
  }

  /// unpack_nibbles and dot_rows in one: the weights go from the table to the sums without passing through memory.
  /// `outputs` of the tile at a time, so that the sums of many rows stay in registers.
  template <int group, int rows, int outputs>
  static void dot_nibbles(const PackedMatrix& matrix, const std::byte* slice, int64_t inputs, const float* x,
                          float* sums) {
    alignas(64) float room[2 * kTileOutputs * (kSliceInputs / 32) + 16];
    const int64_t groups = inputs / group;
    const float* scales = widen_pairs(matrix, slice, groups, room);
    const float* biases = scales + kTileOutputs * groups;
    const std::byte* codes = slice + matrix.pair_bytes(inputs);
    for (int64_t first = 0; first < kTileOutputs; first += outputs) {
      constexpr int count = (rows * outputs + 3) / 4 * 4;
      F lanes[count];
      for (F& lane : lanes) lane = L::zero();
      for (int64_t chunk = 0; chunk < inputs / 128; ++chunk) {
        I word[outputs];
        F table[outputs];
        for (int64_t o = 0; o < outputs; ++o) {
          word[o] = L::load_integers(codes + (chunk * kTileOutputs + first + o) * 64);
          L::prefetch(codes + (chunk * kTileOutputs + first + o) * 64 + kPrefetchBytes);
        }
        const auto add = [&]<int place>() {
          if constexpr (place * 16 % group == 0) {
            const int64_t g = (chunk * 128 + place * 16) / group;
            for (int64_t o = 0; o < outputs; ++o)
              table[o] = L::table(scales[(first + o) * groups + g], biases[(first + o) * groups + g]);
          }
          F weight[outputs];
          for (int64_t o = 0; o < outputs; ++o)
            weight[o] = L::look_up(table[o], L::template shift_right<place * 4>(word[o]));
          for (int r = 0; r < rows; ++r) {
            const F value = L::load(x + ((chunk * 8 + place) * rows + r) * 16);
            for (int64_t o = 0; o < outputs; ++o)
              lanes[r * outputs + o] = L::fma(weight[o], value, lanes[r * outputs + o]);
          }
        };
        add.template operator()<0>();
        add.template operator()<1>();
        add.template operator()<2>();
        add.template operator()<3>();
        add.template operator()<4>();
        add.template operator()<5>();
        add.template operator()<6>();
        add.template operator()<7>();
      }
      if constexpr (outputs == kTileOutputs) {
        add_lanes<count>(lanes, sums);
      } else {
        float totals[count];
        add_lanes<count>(lanes, totals);
        for (int r = 0; r < rows; ++r) {
          for (int o = 0; o < outputs; ++o) sums[r * kTileOutputs + first + o] = totals[r * outputs + o];
        }
      }
    }
  }

  template <int group>
  static void dot_nibble_rows(const PackedMatrix& matrix, const std::byte* slice, int64_t inputs, const float* x,
                              int64_t rows, float* sums) {
    switch (rows) {
      case 1:
        return dot_nibbles<group, 1, 4>(matrix, slice, inputs, x, sums);
      case 2:
        return dot_nibbles<group, 2, 4>(matrix, slice, inputs, x, sums);
      case 3:
        return dot_nibbles<group, 3, 4>(matrix, slice, inputs, x, sums);
      case 4:
        return dot_nibbles<group, 4, 4>(matrix, slice, inputs, x, sums);
      case 5:
        return dot_nibbles<group, 5, 2>(matrix, slice, inputs, x, sums);
      case 6:
        return dot_nibbles<group, 6, 2>(matrix, slice, inputs, x, sums);
      case 7:
        return dot_nibbles<group, 7, 2>(matrix, slice, inputs, x, sums);
      default:
        return dot_nibbles<group, 8, 2>(matrix, slice, inputs, x, sums);
    }
  }

  /// No panel where the kind of codes has a kernel without one.
  static void dot_slice(const PackedMatrix& matrix, const std::byte* slice, int64_t inputs, const float* x,
                        int64_t rows, float* panel, float* sums) {
    if (matrix.kind == CodeKind::nibble) {
      if (matrix.group == 32) return dot_nibble_rows<32>(matrix, slice, inputs, x, rows, sums);
      if (matrix.group == 64) return dot_nibble_rows<64>(matrix, slice, inputs, x, rows, sums);
      return dot_nibble_rows<128>(matrix, slice, inputs, x, rows, sums);
    }
    unpack_slice(matrix, slice, inputs, panel);
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const int64_t count = rows - r < kTileRows ? rows - r : kTileRows;
      dot_tile(x + r * 16, rows, count, panel, inputs, sums + r * kTileOutputs);
    }
  }

  template <int group>
  static void unpack_bytes(const PackedMatrix& matrix, const std::byte* slice, int64_t inputs, float* panel) {
    alignas(64) float room[2 * kTileOutputs * (kSliceInputs / 32) + 16];
    const int64_t groups = inputs / group;
    const float* scales = widen_pairs(matrix, slice, groups, room);
    const float* biases = scales + kTileOutputs * groups;
    const std::byte* codes = slice + matrix.pair_bytes(inputs);
    const I low = L::set_integer(255);
    for (int64_t chunk = 0; chunk < inputs / 64; ++chunk) {
      for (int64_t o = 0; o < kTileOutputs; ++o) {
        const I word = L::load_integers(codes + (chunk * kTileOutputs + o) * 64);
        L::prefetch(codes + (chunk * kTileOutputs + o) * 64 + kPrefetchBytes);
        float* to = panel + (chunk * 4 * kTileOutputs + o) * 16;
        F scale;
        F bias;
        const auto put = [&]<int place>() {
          if constexpr (place * 16 % group == 0) {
            const int64_t g = o * groups + (chunk * 64 + place * 16) / group;
            scale = L::set(scales[g]);
            bias = L::set(biases[g]);
          }
          const F code = L::to_float(L::both(L::template shift_right<place * 8>(word), low));
          L::store(to + place * kTileOutputs * 16, L::fma(code, scale, bias));
        };
        put.template operator()<0>();
        put.template operator()<1>();
        put.template operator()<2>();
        put.template operator()<3>();
      }
    }
  }

  static void unpack_bf16(const std::byte* codes, int64_t inputs, float* panel) {
    const I high = L::set_integer(0xFFFF0000U);
    for (int64_t chunk = 0; chunk < inputs / 32; ++chunk) {
      for (int64_t o = 0; o < kTileOutputs; ++o) {
        const I word = L::load_integers(codes + (chunk * kTileOutputs + o) * 64);
        float* to = panel + (chunk * 2 * kTileOutputs + o) * 16;
        L::store(to, L::from_bits(L::template shift_left<16>(word)));
        L::store(to + kTileOutputs * 16, L::from_bits(L::both(word, high)));
      }
    }
  }

  static void unpack_slice(const PackedMatrix& matrix, const std::byte* slice, int64_t inputs, float* panel) {
    switch (matrix.kind) {
      case CodeKind::nibble:
        if (matrix.group == 32) return unpack_nibbles<32>(matrix, slice, inputs, panel);
        if (matrix.group == 64) return unpack_nibbles<64>(matrix, slice, inputs, panel);
        return unpack_nibbles<128>(matrix, slice, inputs, panel);
      case CodeKind::byte:
        if (matrix.group == 32) return unpack_bytes<32>(matrix, slice, inputs, panel);
        if (matrix.group == 64) return unpack_bytes<64>(matrix, slice, inputs, panel);
        return unpack_bytes<128>(matrix, slice, inputs, panel);
      case CodeKind::bf16:
        return unpack_bf16(slice, inputs, panel);
      case CodeKind::f32:
        std::memcpy(panel, slice, static_cast<size_t>(inputs * kTileOutputs) * sizeof(float));
        return;
    }
  }

  template <int rows>
  static void dot_rows(const float* x, int64_t pitch, const float* panel, int64_t inputs, float* sums) {
    F lanes[rows * kTileOutputs];
    for (F& lane : lanes) lane = L::zero();
    for (int64_t k = 0; k < inputs; k += 16) {
      F weight[kTileOutputs];
      for (int64_t o = 0; o < kTileOutputs; ++o) {
        weight[o] = L::load(panel + o * 16);
        L::prefetch(panel + kPanelPrefetch + o * 16);
      }
      for (int r = 0; r < rows; ++r) {
        const F value = L::load(x + r * 16);
        for (int64_t o = 0; o < kTileOutputs; ++o) {
          F& lane = lanes[r * kTileOutputs + o];
          lane = L::fma(weight[o], value, lane);
        }
      }
      x += pitch * 16;
      panel += kTileOutputs * 16;
    }
    add_lanes<rows * kTileOutputs>(lanes, sums);
  }

  static void add_transposed(const float* panel, int64_t inputs, const float* coefficients, float* to) {
    for (int64_t k = 0; k < inputs; k += 16, panel += kTileOutputs * 16) {
      F sum = L::load(to + k);
      for (int64_t o = 0; o < kTileOutputs; ++o) sum = L::fma(L::set(coefficients[o]), L::load(panel + o * 16), sum);
      L::store(to + k, sum);
    }
  }

  static void dot_tile(const float* x, int64_t pitch, int64_t rows, const float* panel, int64_t inputs, float* sums) {
    switch (rows) {
      case 1:
        return dot_rows<1>(x, pitch, panel, inputs, sums);
      case 2:
        return dot_rows<2>(x, pitch, panel, inputs, sums);
      case 3:
        return dot_rows<3>(x, pitch, panel, inputs, sums);
      case 4:
        return dot_rows<4>(x, pitch, panel, inputs, sums);
      case 5:
        return dot_rows<5>(x, pitch, panel, inputs, sums);
      default:
        return dot_rows<6>(x, pitch, panel, inputs, sums);
    }
  }
};

}  // namespace tensorfold::backend::cpu
