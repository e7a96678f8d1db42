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

  /// Adds keys [begin, end) of the partition, which lie in one tile starting at absolute position `tile`.
  static void add_tile(const AttendPartition& p, int64_t tile, int64_t begin, int64_t end, int64_t head, bool first) {
    alignas(64) float weights[kTile];
    for (float& weight : weights) weight = kNone;
    const float* query = p.queries + head * p.key_dim;
    const int64_t shift = p.first_position - tile;  // place in the tile of key j: j + shift
    for (int64_t j = begin; j < end; ++j) {
      weights[j + shift] = M::dot(query, p.rows[j] + p.key_offset, p.key_dim) * p.scale;
    }
    float* result = p.results + head * p.result_stride;
    float* maximum = result + p.value_dim;
    float* total = maximum + 1;
    F highest = L::load(weights);
    for (int64_t i = 16; i < kTile; i += 16) highest = L::max(highest, L::load(weights + i));
    const float old_maximum = first ? kNone : *maximum;
    const float tile_maximum = L::largest(highest);
    const float new_maximum = tile_maximum > old_maximum ? tile_maximum : old_maximum;
    F sum = L::zero();
    for (int64_t i = 0; i < kTile; i += 16) {  // places without a key: exp(-infinity) = 0
      const F weight = M::exp(L::sub(L::load(weights + i), L::set(new_maximum)));
      L::store(weights + i, weight);
      sum = L::add(sum, weight);
    }
    const float correction = first ? 0.0F : exp_of(old_maximum - new_maximum);
    *total = (first ? 0.0F : *total * correction) + L::sum(sum);
    *maximum = new_maximum;
    add_values(p, weights, shift, begin, end, correction, first, result);
  }

  static void add_values(const AttendPartition& p, const float* weights, int64_t shift, int64_t begin, int64_t end,
                         float correction, bool first, float* result) {
    const F factor = L::set(correction);
    M::blocks(p.value_dim, [&](int64_t i, int64_t count) {
      F sum = first ? L::zero() : L::mul(M::load(result + i, count), factor);
      for (int64_t j = begin; j < end; ++j) {
        sum = L::fma(L::set(weights[j + shift]), M::load(p.rows[j] + p.value_offset + i, count), sum);
      }
      M::store(result + i, sum, count);
    });
  }

  static void attend(const AttendPartition& p) {
    const int64_t last = p.first_position + p.count;
    bool first = true;
    for (int64_t tile = p.first_position / kTile * kTile; tile < last; tile += kTile) {
      const int64_t begin = tile > p.first_position ? tile - p.first_position : 0;
      const int64_t end = tile + kTile < last ? tile + kTile - p.first_position : p.count;
      for (int64_t head = 0; head < p.heads; ++head) add_tile(p, tile, begin, end, head, first);
      first = false;
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
