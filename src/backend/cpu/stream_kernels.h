// Mixing of residual streams (backend/operations/manifold_streams.h): sums in stream order.
#pragma once

#include <cstdint>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lane_math.h"

namespace tensorfold::backend::cpu {

template <typename L>
struct StreamKernels {
  using F = typename L::F;
  using M = LaneMath<L>;

  static void read_streams(const float* streams, const float* weights, int64_t count, int64_t width, float* to) {
    M::blocks(width, [&](int64_t i, int64_t n) {
      F sum = L::mul(M::load(streams + i, n), L::set(weights[0]));
      for (int64_t s = 1; s < count; ++s) sum = L::fma(M::load(streams + s * width + i, n), L::set(weights[s]), sum);
      M::store(to + i, sum, n);
    });
  }

  static void write_streams(const float* branch, const float* writes, const float* mix, int64_t count, int64_t width,
                            float* streams) {
    M::blocks(width, [&](int64_t i, int64_t n) {
      F old[kMostStreams];
      for (int64_t s = 0; s < count; ++s) old[s] = M::load(streams + s * width + i, n);
      const F added = M::load(branch + i, n);
      for (int64_t t = 0; t < count; ++t) {
        F sum = L::mul(old[0], L::set(mix[t]));
        for (int64_t s = 1; s < count; ++s) sum = L::fma(old[s], L::set(mix[s * count + t]), sum);
        M::store(streams + t * width + i, L::fma(added, L::set(writes[t]), sum), n);
      }
    });
  }
};

}  // namespace tensorfold::backend::cpu
