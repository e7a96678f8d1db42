// Kernels over one row: norms, activations, the causal convolution and the gated delta step.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lane_math.h"

namespace tensorfold::backend::cpu {

template <typename L>
struct RowKernels {
  using F = typename L::F;
  using M = LaneMath<L>;

  static float total(const float* from, int64_t n) {
    F sums[8];
    for (F& sum : sums) sum = L::zero();
    for (int64_t i = 0; i < n; i += 128) {
      for (int64_t j = 0; j < 8; ++j) {
        L::prefetch(from + i + j * 16 + 1024);
        sums[j] = L::add(sums[j], L::load(from + i + j * 16));
      }
    }
    for (int64_t j = 1; j < 8; ++j) sums[0] = L::add(sums[0], sums[j]);
    return L::sum(sums[0]);
  }

  static void rms_norm(const float* from, const float* weight, int64_t n, float epsilon, float* to) {
    const float mean = M::dot(from, from, n) / static_cast<float>(n);
    const F factor = L::set(1.0F / std::sqrt(mean + epsilon));
    M::blocks(n, [&](int64_t i, int64_t count) {
      F value = L::mul(M::load(from + i, count), factor);
      if (weight != nullptr) value = L::mul(value, M::load(weight + i, count));
      M::store(to + i, value, count);
    });
  }

  /// Centred values pass through `to`, so that lanes beyond n stay zero in the sum of squares.
  static void layer_norm(const float* from, const float* weight, const float* bias, int64_t n, float epsilon,
                         float* to) {
    F sum = L::zero();
    M::blocks(n, [&](int64_t i, int64_t count) { sum = L::add(sum, M::load(from + i, count)); });
    const F mean = L::set(L::sum(sum) / static_cast<float>(n));
    M::blocks(n, [&](int64_t i, int64_t count) { M::store(to + i, L::sub(M::load(from + i, count), mean), count); });
    const float variance = M::dot(to, to, n) / static_cast<float>(n);
    const F factor = L::set(1.0F / std::sqrt(variance + epsilon));
    M::blocks(n, [&](int64_t i, int64_t count) {
      const F scaled = L::mul(M::load(to + i, count), factor);
      M::store(to + i, L::fma(scaled, M::load(weight + i, count), M::load(bias + i, count)), count);
    });
  }

  static void channel_decay(const float* from, const float* bias, float rate, float bound, int64_t n, float* to) {
    M::blocks(n, [&](int64_t i, int64_t count) {
      const F shifted = L::add(M::load(from + i, count), M::load(bias + i, count));
      M::store(to + i, M::exp(L::mul(L::set(bound), M::sigmoid(L::mul(L::set(rate), shifted)))), count);
    });
  }

  static void add(const float* from, int64_t n, float* to) {
    M::blocks(n, [&](int64_t i, int64_t count) {
      M::store(to + i, L::add(M::load(to + i, count), M::load(from + i, count)), count);
    });
  }

  static void swiglu(const float* gate, const float* up, int64_t n, float* to) {
    M::blocks(n, [&](int64_t i, int64_t count) {
      M::store(to + i, L::mul(M::silu(M::load(gate + i, count)), M::load(up + i, count)), count);
    });
  }

  /// min(a, b), and b where a is NaN: max with both signs turned.
  static F least(F a, F b) { return L::sub(L::zero(), L::max(L::sub(L::zero(), a), L::sub(L::zero(), b))); }

  static void limited_swiglu(const float* gate, const float* up, float limit, int64_t n, float* to) {
    const F most = L::set(limit);
    const F fewest = L::set(-limit);
    M::blocks(n, [&](int64_t i, int64_t count) {
      const F bent = M::silu(least(M::load(gate + i, count), most));
      M::store(to + i, L::mul(bent, L::max(least(M::load(up + i, count), most), fewest)), count);
    });
  }

  static void geglu(const float* gate, const float* up, int64_t n, float* to) {
    M::blocks(n, [&](int64_t i, int64_t count) {
      M::store(to + i, L::mul(M::gelu_tanh(M::load(gate + i, count)), M::load(up + i, count)), count);
    });
  }

  static void relu_squared(const float* from, int64_t n, float* to) {
    M::blocks(n, [&](int64_t i, int64_t count) {
      const F positive = L::max(M::load(from + i, count), L::zero());
      M::store(to + i, L::mul(positive, positive), count);
    });
  }

  static void add_scaled(float factor, const float* from, int64_t n, float* to) {
    const F value = L::set(factor);
    M::blocks(n, [&](int64_t i, int64_t count) {
      M::store(to + i, L::fma(value, M::load(from + i, count), M::load(to + i, count)), count);
    });
  }

  static void soft_cap(float cap, int64_t n, float* values) {
    const F factor = L::set(cap);
    M::blocks(n, [&](int64_t i, int64_t count) {
      M::store(values + i, L::mul(factor, M::tanh(L::div(M::load(values + i, count), factor))), count);
    });
  }

  static void multiply_sigmoid(const float* gate, int64_t n, float* to) {
    M::blocks(n, [&](int64_t i, int64_t count) {
      M::store(to + i, L::mul(M::load(to + i, count), M::sigmoid(M::load(gate + i, count))), count);
    });
  }

  static void multiply_silu(const float* gate, int64_t n, float* to) {
    M::blocks(n, [&](int64_t i, int64_t count) {
      M::store(to + i, L::mul(M::load(to + i, count), M::silu(M::load(gate + i, count))), count);
    });
  }

  static void scale(float factor, int64_t n, float* to) {
    const F value = L::set(factor);
    M::blocks(n, [&](int64_t i, int64_t count) { M::store(to + i, L::mul(M::load(to + i, count), value), count); });
  }

  static void convolve(const float* const* rows, const float* taps, const float* bias, int64_t kernel, int64_t channels,
                       float* to) {
    M::blocks(channels, [&](int64_t i, int64_t count) {
      F sum = bias != nullptr ? M::load(bias + i, count) : L::zero();
      for (int64_t j = 0; j < kernel; ++j) {
        if (rows[j] == nullptr) continue;
        sum = L::fma(M::load(taps + j * channels + i, count), M::load(rows[j] + i, count), sum);
      }
      M::store(to + i, M::silu(sum), count);
    });
  }

  /// S' = S decay (one for all, or one a key channel); e = S' k; delta = beta (v - e); S = S' + delta k^T; o = S q
  /// (Qwen3.8-27B specification A.5, 6; GLM-5.3-Flash specification 6.3, 7). Sixteen rows of S at a time, so that their
  /// dot products share the reduction.
  static void delta_step(const DeltaStep& step) {
    step.decays != nullptr ? delta_step_by<true>(step) : delta_step_by<false>(step);
  }

  template <bool channels>
  static void delta_step_by(const DeltaStep& step) {
    if (step.key_dim == 128) return delta_step_of<8, channels>(step);
    if (step.key_dim == 64) return delta_step_of<4, channels>(step);
    delta_step_of<0, channels>(step);
  }

  /// `fixed`: key_dim / 16, known to the compiler; 0: any. `channels`: a decay a key channel.
  template <int fixed, bool channels>
  static void delta_step_of(const DeltaStep& step) {
    const F decay = L::set(step.decay);
    const F beta = L::set(step.beta);
    const int64_t dim = fixed > 0 ? fixed * 16 : step.key_dim;
    F lanes[16];
    for (int64_t first = 0; first < step.value_dim; first += 16) {
      const int64_t rows = step.value_dim - first < 16 ? step.value_dim - first : 16;
      const float* source = step.source + first * dim;
      float* state = step.state + first * dim;
      for (F& lane : lanes) lane = L::zero();
      for (int64_t r = 0; r < rows; ++r) {
        F sum = L::zero();
        row_blocks<fixed>(dim, [&](int64_t i, int64_t count) {
          const F factor = channels ? M::load(step.decays + i, count) : decay;
          const F decayed = L::mul(M::load(source + r * dim + i, count), factor);
          M::store(state + r * dim + i, decayed, count);
          sum = L::fma(decayed, M::load(step.key + i, count), sum);
        });
        lanes[r] = sum;
      }
      alignas(64) float delta[16];
      L::store(delta, L::mul(beta, L::sub(M::load(step.value + first, rows), L::sums(lanes))));
      for (int64_t r = 0; r < rows; ++r) {
        const F factor = L::set(delta[r]);
        F sum = L::zero();
        row_blocks<fixed>(dim, [&](int64_t i, int64_t count) {
          float* row = state + r * dim + i;
          const F updated = L::fma(factor, M::load(step.key + i, count), M::load(row, count));
          M::store(row, updated, count);
          if (step.query != nullptr) sum = L::fma(updated, M::load(step.query + i, count), sum);
        });
        lanes[r] = sum;
      }
      if (step.query != nullptr) M::store(step.output + first, L::sums(lanes), rows);
    }
  }

  /// S = decay S + (step x) B^T; y = S C + skip x (Nemotron 3.5 specification 3.1, 6 and 7). Sixteen rows of S at a
  /// time, so that their dot products share the reduction.
  static void mamba_step(const MambaStep& step) {
    if (step.state_dim == 128) return mamba_step_of<8>(step);
    mamba_step_of<0>(step);
  }

  /// `fixed`: state_dim / 16, known to the compiler; 0: any.
  template <int fixed>
  static void mamba_step_of(const MambaStep& step) {
    const F decay = L::set(step.decay);
    const int64_t dim = fixed > 0 ? fixed * 16 : step.state_dim;
    F lanes[16];
    for (int64_t first = 0; first < step.head_dim; first += 16) {
      const int64_t rows = step.head_dim - first < 16 ? step.head_dim - first : 16;
      const F x = M::load(step.input + first, rows);
      alignas(64) float factors[16];
      L::store(factors, L::mul(x, L::set(step.step)));
      for (F& lane : lanes) lane = L::zero();
      for (int64_t r = 0; r < rows; ++r) {
        const F factor = L::set(factors[r]);
        const float* source = step.source + (first + r) * dim;
        float* state = step.state + (first + r) * dim;
        F sum = L::zero();
        row_blocks<fixed>(dim, [&](int64_t i, int64_t count) {
          const F decayed = L::mul(M::load(source + i, count), decay);
          const F updated = L::fma(factor, M::load(step.in + i, count), decayed);
          M::store(state + i, updated, count);
          if (step.out != nullptr) sum = L::fma(updated, M::load(step.out + i, count), sum);
        });
        lanes[r] = sum;
      }
      if (step.out != nullptr) M::store(step.output + first, L::fma(L::set(step.skip), x, L::sums(lanes)), rows);
    }
  }

  template <int fixed, typename Body>
  static void row_blocks(int64_t n, Body body) {
    if constexpr (fixed > 0) {
#pragma GCC unroll 8
      for (int i = 0; i < fixed; ++i) body(int64_t{i} * 16, int64_t{16});
    } else {
      M::blocks(n, body);
    }
  }
};

}  // namespace tensorfold::backend::cpu
