// Pooling and scoring of index keys (backend/operations/block_index.h). A head's dot product is sixteen-lane; heads
// follow each other with one fma each.
#pragma once

#include <cstdint>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lane_math.h"

namespace tensorfold::backend::cpu {

template <typename L>
struct IndexKernels {
  using F = typename L::F;
  using M = LaneMath<L>;

  static void pool_mean(const float* const* keys, int64_t count, int64_t dim, float* to) {
    const F share = L::set(1.0F / static_cast<float>(count));
    M::blocks(dim, [&](int64_t i, int64_t n) {
      F sum = M::load(keys[0] + i, n);
      for (int64_t t = 1; t < count; ++t) sum = L::add(sum, M::load(keys[t] + i, n));
      M::store(to + i, L::mul(sum, share), n);
    });
  }

  static void pool_gated(const float* const* keys, const float* positions, int64_t count, int64_t dim, float* to) {
    M::blocks(dim, [&](int64_t i, int64_t n) {
      const auto gate = [&](int64_t t) {
        return L::add(M::load(keys[t] + dim + i, n), M::load(positions + t * dim + i, n));
      };
      F most = gate(0);
      for (int64_t t = 1; t < count; ++t) most = L::max(most, gate(t));
      F total = M::exp(L::sub(gate(0), most));
      for (int64_t t = 1; t < count; ++t) total = L::add(total, M::exp(L::sub(gate(t), most)));
      F sum = L::zero();
      for (int64_t t = 0; t < count; ++t) {
        const F weight = L::div(M::exp(L::sub(gate(t), most)), total);
        sum = L::fma(weight, M::load(keys[t] + i, n), sum);
      }
      M::store(to + i, sum, n);
    });
  }

  /// Scores of four keys (`count` of them stored) against `heads` heads, added to `scores` in head order.
  template <int heads>
  static void add_heads(const BlockScores& s, const float* const* keys, int64_t first_head, F& scores) {
    F lanes[heads * 4];
    for (F& lane : lanes) lane = L::zero();
    M::blocks(s.dim, [&](int64_t d, int64_t n) {
      F key[4];
      for (int i = 0; i < 4; ++i) key[i] = M::load(keys[i] + d, n);
      for (int h = 0; h < heads; ++h) {
        const F query = M::load(s.queries + (first_head + h) * s.dim + d, n);
        for (int i = 0; i < 4; ++i) lanes[h * 4 + i] = L::fma(query, key[i], lanes[h * 4 + i]);
      }
    });
    for (int h = 0; h < heads; ++h) {
      const F match = L::max(L::mul(L::sums_of_four(lanes + h * 4), L::set(s.scale)), L::zero());
      scores = L::fma(L::set(s.weights[first_head + h]), match, scores);
    }
  }

  static void score_blocks(const BlockScores& s) {
    for (int64_t j = 0; j < s.count; j += 4) {
      const int64_t count = s.count - j < 4 ? s.count - j : 4;
      const float* keys[4];
      for (int64_t i = 0; i < 4; ++i) keys[i] = s.keys[i < count ? j + i : j];
      F scores = L::zero();
      int64_t head = 0;
      for (; head + 4 <= s.heads; head += 4) add_heads<4>(s, keys, head, scores);
      for (; head < s.heads; ++head) add_heads<1>(s, keys, head, scores);
      L::store_part(s.scores + j, scores, count);
    }
  }
};

}  // namespace tensorfold::backend::cpu
