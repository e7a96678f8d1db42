// The gated delta rule with random weights, and its double-precision reference.
#pragma once

#include "backend/mixer_rig.h"

namespace tensorfold::testing {

using backend::GatedDeltaShape;

class DeltaMixer : public Mixer {
 public:
  DeltaMixer(const GatedDeltaShape& shape, Random& random, bool sigmoid_gate = false)
      : s_(shape), sigmoid_gate_(sigmoid_gate) {
    taps_ = random_floats(random, s_.channels() * s_.kernel, 0.6F);
    decay_log_ = random_floats(random, s_.value_heads);
    decay_bias_ = random_floats(random, s_.value_heads);
    gain_ = random_floats(random, s_.value_dim);
  }
  [[nodiscard]] backend::CacheLayout layout() const override { return {{backend::StateEntry{"delta", s_}}}; }
  [[nodiscard]] int64_t values() const { return 1LL * s_.value_heads * s_.value_dim; }
  [[nodiscard]] int64_t input_width() const override { return s_.channels() + values() + 2LL * s_.value_heads; }
  [[nodiscard]] int64_t output_width() const override { return values(); }
  void load(backend::Backend& backend) override {
    convolution_ = backend.load_vector(taps_);
    log_ = backend.load_vector(decay_log_);
    bias_ = backend.load_vector(decay_bias_);
    norm_ = backend.load_vector(gain_);
  }
  void forward(backend::Backend& backend, const backend::Plan& plan, backend::Cache& cache, backend::Tensor input,
               backend::Tensor output) override {
    backend::GatedDelta d;
    d.cache = &cache;
    d.mixed = input.columns(0, s_.channels());
    d.gate = input.columns(s_.channels(), values());
    d.beta = input.columns(s_.channels() + values(), s_.value_heads);
    d.decay = input.columns(s_.channels() + values() + s_.value_heads, s_.value_heads);
    d.convolution = convolution_.get();
    d.decay_log = log_.get();
    d.decay_bias = bias_.get();
    d.norm = norm_.get();
    d.epsilon = 1e-6F;
    d.sigmoid_gate = sigmoid_gate_;
    d.output = output;
    backend.gated_delta(plan, d);
  }

  [[nodiscard]] std::vector<double> reference(const std::vector<float>& rows) const override {
    const auto count = static_cast<int64_t>(rows.size()) / input_width();
    const auto at = [&](int64_t row, int64_t column) {
      return row < 0 ? 0.0 : static_cast<double>(rows[static_cast<size_t>(row * input_width() + column)]);
    };
    const auto silu = [](double x) { return x / (1.0 + std::exp(-x)); };
    const auto activate = [&](double z) { return sigmoid_gate_ ? 1.0 / (1.0 + std::exp(-z)) : silu(z); };
    const auto dim = static_cast<size_t>(s_.key_dim);
    std::vector<std::vector<double>> states(static_cast<size_t>(s_.value_heads * s_.value_dim),
                                            std::vector<double>(dim));
    std::vector<double> outputs;
    for (int64_t row = 0; row < count; ++row) {
      std::vector<double> c;
      for (int64_t channel = 0; channel < s_.channels(); ++channel) {
        double sum = 0.0;
        for (int32_t j = 0; j < s_.kernel; ++j) {
          sum += static_cast<double>(taps_[static_cast<size_t>(channel * s_.kernel + j)]) *
                 at(row - s_.kernel + 1 + j, channel);
        }
        c.push_back(silu(sum));
      }
      const auto normed = [&](int64_t first, double factor) {
        std::vector<double> v(c.begin() + first, c.begin() + first + s_.key_dim);
        double squares = 0.0;
        for (const double x : v) squares += x * x;
        for (double& x : v) x *= factor / std::sqrt(squares / s_.key_dim + 1e-6);
        return v;
      };
      for (int32_t n = 0; n < s_.value_heads; ++n) {
        const int64_t m = n / (s_.value_heads / s_.key_heads);
        const std::vector<double> q = normed(m * s_.key_dim, 1.0 / s_.key_dim);
        const std::vector<double> k = normed((s_.key_heads + m) * s_.key_dim, 1.0 / std::sqrt(s_.key_dim));
        const double beta = 1.0 / (1.0 + std::exp(-at(row, s_.channels() + values() + n)));
        const double a = at(row, s_.channels() + values() + s_.value_heads + n) +
                         static_cast<double>(decay_bias_[static_cast<size_t>(n)]);
        const double g =
            std::exp(-std::exp(static_cast<double>(decay_log_[static_cast<size_t>(n)])) * std::log1p(std::exp(a)));
        std::vector<double> o;
        for (int32_t i = 0; i < s_.value_dim; ++i) {
          std::vector<double>& state = states[static_cast<size_t>(n * s_.value_dim + i)];
          double e = 0.0;
          for (size_t d = 0; d < dim; ++d) e += (state[d] *= g) * k[d];
          const double delta =
              beta * (c[static_cast<size_t>(2LL * s_.key_heads * s_.key_dim + n * s_.value_dim + i)] - e);
          double y = 0.0;
          for (size_t d = 0; d < dim; ++d) y += (state[d] += delta * k[d]) * q[d];
          o.push_back(y);
        }
        double squares = 0.0;
        for (const double y : o) squares += y * y;
        const double factor = 1.0 / std::sqrt(squares / s_.value_dim + 1e-6);
        for (int32_t i = 0; i < s_.value_dim; ++i) {
          outputs.push_back(o[static_cast<size_t>(i)] * factor * static_cast<double>(gain_[static_cast<size_t>(i)]) *
                            activate(at(row, s_.channels() + n * s_.value_dim + i)));
        }
      }
    }
    return outputs;
  }

 private:
  GatedDeltaShape s_;
  bool sigmoid_gate_;
  std::vector<float> taps_, decay_log_, decay_bias_, gain_;
  std::unique_ptr<backend::Vector> convolution_, log_, bias_, norm_;
};

}  // namespace tensorfold::testing
