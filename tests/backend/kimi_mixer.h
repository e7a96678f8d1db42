// Kimi delta attention with random weights, and its double-precision reference.
#pragma once

#include "backend/mixer_rig.h"

namespace tensorfold::testing {

using backend::KimiDeltaShape;

class KimiMixer : public Mixer {
 public:
  KimiMixer(const KimiDeltaShape& shape, Random& random) : s_(shape) {
    taps_ = random_floats(random, s_.channels() * s_.kernel, 0.6F);
    decay_log_ = random_floats(random, s_.heads);
    decay_bias_ = random_floats(random, s_.values());
    gain_ = random_floats(random, s_.dim);
  }
  [[nodiscard]] backend::CacheLayout layout() const override { return {{backend::StateEntry{"kimi", s_}}}; }
  [[nodiscard]] int64_t input_width() const override { return s_.channels() + 2 * s_.values() + s_.heads; }
  [[nodiscard]] int64_t output_width() const override { return s_.values(); }
  void load(backend::Backend& backend) override {
    loaded_.clear();
    for (const auto* values : {&taps_, &decay_log_, &decay_bias_, &gain_})
      loaded_.push_back(backend.load_vector(*values));
  }
  void forward(backend::Backend& backend, const backend::Plan& plan, backend::Cache& cache, backend::Tensor input,
               backend::Tensor output) override {
    backend::KimiDelta k;
    k.cache = &cache;
    k.mixed = input.columns(0, s_.channels());
    k.gate = input.columns(s_.channels(), s_.values());
    k.decay = input.columns(s_.channels() + s_.values(), s_.values());
    k.beta = input.columns(s_.channels() + 2 * s_.values(), s_.heads);
    k.convolution = loaded_[0].get();
    k.decay_log = loaded_[1].get();
    k.decay_bias = loaded_[2].get();
    k.norm = loaded_[3].get();
    k.lower_bound = kBound;
    k.epsilon = 1e-5F;
    k.key_epsilon = 1e-6F;
    k.output = output;
    backend.kimi_delta(plan, k);
  }

  [[nodiscard]] std::vector<double> reference(const std::vector<float>& rows) const override {
    const auto count = static_cast<int64_t>(rows.size()) / input_width();
    const auto at = [&](int64_t row, int64_t column) {
      return row < 0 ? 0.0 : static_cast<double>(rows[static_cast<size_t>(row * input_width() + column)]);
    };
    const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
    const auto value = [](const std::vector<float>& v, int64_t i) {
      return static_cast<double>(v[static_cast<size_t>(i)]);
    };
    std::vector<double> state(static_cast<size_t>(s_.values() * s_.dim), 0.0);
    std::vector<double> outputs;
    for (int64_t row = 0; row < count; ++row) {
      std::vector<double> c;
      for (int64_t channel = 0; channel < s_.channels(); ++channel) {
        double sum = 0.0;
        for (int64_t j = 0; j < s_.kernel; ++j)
          sum += value(taps_, channel * s_.kernel + j) * at(row - s_.kernel + 1 + j, channel);
        c.push_back(sum * sigmoid(sum));
      }
      const auto normed = [&](int64_t first, double factor) {
        std::vector<double> v(c.begin() + first, c.begin() + first + s_.dim);
        double squares = 0.0;
        for (const double x : v) squares += x * x;
        for (double& x : v) x *= factor / std::sqrt(squares / s_.dim + 1e-6);
        return v;
      };
      for (int64_t h = 0; h < s_.heads; ++h) {
        const std::vector<double> q = normed(h * s_.dim, 1.0 / s_.dim);
        const std::vector<double> k = normed(s_.values() + h * s_.dim, 1.0 / std::sqrt(s_.dim));
        const double beta = sigmoid(at(row, s_.channels() + 2 * s_.values() + h));
        std::vector<double> g;
        for (int64_t i = 0; i < s_.dim; ++i) {
          const double raw = at(row, s_.channels() + s_.values() + h * s_.dim + i) + value(decay_bias_, h * s_.dim + i);
          g.push_back(std::exp(static_cast<double>(kBound) * sigmoid(std::exp(value(decay_log_, h)) * raw)));
        }
        std::vector<double> o;
        double squares = 0.0;
        for (int64_t v = 0; v < s_.dim; ++v) {
          double* s = &state[static_cast<size_t>((h * s_.dim + v) * s_.dim)];
          double e = 0.0;
          for (size_t i = 0; i < g.size(); ++i) e += (s[i] *= g[i]) * k[i];
          const double delta = beta * (c[static_cast<size_t>(2 * s_.values() + h * s_.dim + v)] - e);
          double y = 0.0;
          for (size_t i = 0; i < g.size(); ++i) y += (s[i] += delta * k[i]) * q[i];
          o.push_back(y);
          squares += y * y;
        }
        const double factor = 1.0 / std::sqrt(squares / s_.dim + 1e-5);
        for (int64_t v = 0; v < s_.dim; ++v)
          outputs.push_back(o[static_cast<size_t>(v)] * factor * value(gain_, v) *
                            sigmoid(at(row, s_.channels() + h * s_.dim + v)));
      }
    }
    return outputs;
  }

 private:
  static constexpr float kBound = -2.5F;
  KimiDeltaShape s_;
  std::vector<float> taps_, decay_log_, decay_bias_, gain_;
  std::vector<std::unique_ptr<backend::Vector>> loaded_;
};

}  // namespace tensorfold::testing
