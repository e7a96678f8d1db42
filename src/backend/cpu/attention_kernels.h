// Attention of one partition of keys. Order: keys in tiles of 64 at absolute positions. Inside a tile every score is a
// sixteen-lane dot product times the scale; the running maximum moves once a tile; weights exp(score - maximum) are
// added in sixteen lanes (key = lane mod 16) and by the fixed tree; values are added key by key with fma.
#pragma once

#include <cstdint>
#include <limits>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lane_math.h"

namespace tensorfold::backend::cpu {

template <typename L>
struct AttentionKernels {
  using F = typename L::F;
  using M = LaneMath<L>;
  static constexpr int64_t kTile = 64;
  static constexpr float kNone = -std::numeric_limits<float>::infinity();

  static float exp_of(float x) {
    alignas(64) float lanes[16];
    L::store(lanes, M::exp(L::set(x)));
    return lanes[0];
  }

  /// Keys [begin, end) of the partition, which lie in one tile. `shift`: place in the tile of key j is j + shift.
  struct Tile {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t shift = 0;
    bool first = false;  ///< of the partition
  };

  /// weights[head][place] = scores of `heads` heads; four keys at a time share the loads of the queries.
  template <int heads>
  static void score(const AttendPartition& p, const Tile& tile, int64_t first_head, float (*weights)[kTile]) {
    const float* queries = p.queries + first_head * p.key_dim;
    const F scale = L::set(p.scale);
    for (int64_t j = tile.begin; j < tile.end; j += 4) {
      const int64_t count = tile.end - j < 4 ? tile.end - j : 4;
      const float* keys[4];
      for (int64_t i = 0; i < 4; ++i) keys[i] = p.rows[i < count ? j + i : j] + p.key_offset;
      F lanes[heads * 4];
      for (F& lane : lanes) lane = L::zero();
      M::blocks(p.key_dim, [&](int64_t d, int64_t n) {
        F key[4];
        for (int i = 0; i < 4; ++i) key[i] = M::load(keys[i] + d, n);
        for (int h = 0; h < heads; ++h) {
          const F query = M::load(queries + h * p.key_dim + d, n);
          for (int i = 0; i < 4; ++i) lanes[h * 4 + i] = L::fma(query, key[i], lanes[h * 4 + i]);
        }
      });
      for (int h = 0; h < heads; ++h)
        L::store_part(&weights[h][j + tile.shift], L::mul(L::sums_of_four(lanes + h * 4), scale), count);
    }
  }

  /// Turns a head's scores into weights against the running maximum; returns the factor for what was summed before.
  static float weigh(const Tile& tile, float* weights, float* maximum, float* total) {
    F highest = L::load(weights);
    for (int64_t i = 16; i < kTile; i += 16) highest = L::max(highest, L::load(weights + i));
    const float old_maximum = tile.first ? kNone : *maximum;
    const float tile_maximum = L::largest(highest);
    const float new_maximum = tile_maximum > old_maximum ? tile_maximum : old_maximum;
    F sum = L::zero();
    for (int64_t i = 0; i < kTile; i += 16) {  // places without a key: exp(-infinity) = 0
      const F weight = M::exp(L::sub(L::load(weights + i), L::set(new_maximum)));
      L::store(weights + i, weight);
      sum = L::add(sum, weight);
    }
    const float correction = tile.first ? 0.0F : exp_of(old_maximum - new_maximum);
    *total = (tile.first ? 0.0F : *total * correction) + L::sum(sum);
    *maximum = new_maximum;
    return correction;
  }

  /// Adds the weighted values of up to four blocks of sixteen dimensions from `d` on, key by key.
  template <int heads, int blocks>
  static void add_values(const AttendPartition& p, const Tile& tile, int64_t d, int64_t width, float* results,
                         const float (*weights)[kTile], const float* corrections) {
    F sums[heads * blocks];
    const auto count = [&](int b) { return width - b * 16 < 16 ? width - b * 16 : int64_t{16}; };
    for (int h = 0; h < heads; ++h) {
      for (int b = 0; b < blocks; ++b) {
        sums[h * blocks + b] = L::zero();
        if (tile.first) continue;
        const F old = M::load(results + h * p.result_stride + d + b * 16, count(b));
        sums[h * blocks + b] = L::mul(old, L::set(corrections[h]));
      }
    }
    for (int64_t j = tile.begin; j < tile.end; ++j) {
      const float* value_row = p.rows[j] + p.value_offset + d;
      F value[blocks];
      for (int b = 0; b < blocks; ++b) value[b] = M::load(value_row + b * 16, count(b));
      for (int h = 0; h < heads; ++h) {
        const F weight = L::set(weights[h][j + tile.shift]);
        for (int b = 0; b < blocks; ++b) sums[h * blocks + b] = L::fma(weight, value[b], sums[h * blocks + b]);
      }
    }
    for (int h = 0; h < heads; ++h) {
      for (int b = 0; b < blocks; ++b)
        M::store(results + h * p.result_stride + d + b * 16, sums[h * blocks + b], count(b));
    }
  }

  template <int heads>
  static void add_tile(const AttendPartition& p, const Tile& tile, int64_t first_head) {
    alignas(64) float weights[heads][kTile];
    for (auto& row : weights) {
      for (float& weight : row) weight = kNone;
    }
    score<heads>(p, tile, first_head, weights);
    float* results = p.results + first_head * p.result_stride;
    float corrections[heads];
    for (int h = 0; h < heads; ++h) {
      float* maximum = results + h * p.result_stride + p.value_dim;
      corrections[h] = weigh(tile, weights[h], maximum, maximum + 1);
    }
    int64_t d = 0;
    for (; d + 64 <= p.value_dim; d += 64) add_values<heads, 4>(p, tile, d, 64, results, weights, corrections);
    for (; d < p.value_dim; d += 16) {
      const int64_t width = p.value_dim - d < 16 ? p.value_dim - d : 16;
      add_values<heads, 1>(p, tile, d, width, results, weights, corrections);
    }
  }

  static void attend(const AttendPartition& p) {
    const int64_t last = p.first_position + p.count;
    Tile tile;
    tile.first = true;
    for (int64_t start = p.first_position / kTile * kTile; start < last; start += kTile) {
      tile.begin = start > p.first_position ? start - p.first_position : 0;
      tile.end = start + kTile < last ? start + kTile - p.first_position : p.count;
      tile.shift = p.first_position - start;
      int64_t head = 0;
      for (; head + 4 <= p.heads; head += 4) add_tile<4>(p, tile, head);
      switch (p.heads - head) {
        case 3:
          add_tile<3>(p, tile, head);
          break;
        case 2:
          add_tile<2>(p, tile, head);
          break;
        case 1:
          add_tile<1>(p, tile, head);
          break;
        default:
          break;
      }
      tile.first = false;
    }
  }

  static void merge(const float* results, int64_t count, int64_t stride, int64_t value_dim, float* to) {
    float maximum = results[value_dim];
    float total = results[value_dim + 1];
    M::blocks(value_dim, [&](int64_t i, int64_t n) { M::store(to + i, M::load(results + i, n), n); });
    for (int64_t part = 1; part < count; ++part) {
      const float* other = results + part * stride;
      const float new_maximum = other[value_dim] > maximum ? other[value_dim] : maximum;
      const float mine = exp_of(maximum - new_maximum);
      const float theirs = exp_of(other[value_dim] - new_maximum);
      const F my_factor = L::set(mine);
      const F their_factor = L::set(theirs);
      M::blocks(value_dim, [&](int64_t i, int64_t n) {
        const F scaled = L::mul(M::load(to + i, n), my_factor);
        M::store(to + i, L::fma(M::load(other + i, n), their_factor, scaled), n);
      });
      total = total * mine + other[value_dim + 1] * theirs;
      maximum = new_maximum;
    }
    const F divisor = L::set(total);
    M::blocks(value_dim, [&](int64_t i, int64_t n) { M::store(to + i, L::div(M::load(to + i, n), divisor), n); });
  }
};

}  // namespace tensorfold::backend::cpu
