// Mamba-2 with random weights, and its double-precision reference.
#pragma once

#include "backend/mixer_rig.h"

namespace tensorfold::testing {

using backend::Mamba2Shape;

class MambaMixer : public Mixer {
 public:
  MambaMixer(const Mamba2Shape& shape, Random& random, float least_step = 0.0F) : s_(shape), least_step_(least_step) {
    taps_ = random_floats(random, s_.channels() * s_.kernel, 0.6F);
    bias_ = random_floats(random, s_.channels(), 0.3F);
    decay_log_ = random_floats(random, s_.heads);
    step_bias_ = random_floats(random, s_.heads);
    skip_ = random_floats(random, s_.heads);
    gain_ = random_floats(random, s_.values());
  }
  [[nodiscard]] backend::CacheLayout layout() const override { return {{backend::StateEntry{"mamba", s_}}}; }
  [[nodiscard]] int64_t input_width() const override { return s_.values() + s_.channels() + s_.heads; }
  [[nodiscard]] int64_t output_width() const override { return s_.values(); }
  void load(backend::Backend& backend) override {
    loaded_.clear();
    for (const auto* values : {&taps_, &bias_, &decay_log_, &step_bias_, &skip_, &gain_})
      loaded_.push_back(backend.load_vector(*values));
  }
  void forward(backend::Backend& backend, const backend::Plan& plan, backend::Cache& cache, backend::Tensor input,
               backend::Tensor output) override {
    backend::Mamba2 m;
    m.cache = &cache;
    m.gate = input.columns(0, s_.values());
    m.mixed = input.columns(s_.values(), s_.channels());
    m.step = input.columns(s_.values() + s_.channels(), s_.heads);
    m.convolution = loaded_[0].get();
    m.convolution_bias = loaded_[1].get();
    m.decay_log = loaded_[2].get();
    m.step_bias = loaded_[3].get();
    m.skip = loaded_[4].get();
    m.norm = loaded_[5].get();
    m.epsilon = 1e-5F;
    m.least_step = least_step_;
    m.output = output;
    backend.mamba2(plan, m);
  }

  [[nodiscard]] std::vector<double> reference(const std::vector<float>& rows) const override {
    const auto count = static_cast<int64_t>(rows.size()) / input_width();
    const auto at = [&](int64_t row, int64_t column) {
      return row < 0 ? 0.0 : static_cast<double>(rows[static_cast<size_t>(row * input_width() + column)]);
    };
    const auto silu = [](double x) { return x / (1.0 + std::exp(-x)); };
    const auto value = [](const std::vector<float>& v, int64_t i) {
      return static_cast<double>(v[static_cast<size_t>(i)]);
    };
    std::vector<double> state(static_cast<size_t>(s_.values() * s_.state), 0.0);
    std::vector<double> outputs;
    for (int64_t row = 0; row < count; ++row) {
      std::vector<double> c;
      for (int64_t channel = 0; channel < s_.channels(); ++channel) {
        double sum = value(bias_, channel);
        for (int64_t j = 0; j < s_.kernel; ++j)
          sum += value(taps_, channel * s_.kernel + j) * at(row - s_.kernel + 1 + j, s_.values() + channel);
        c.push_back(silu(sum));
      }
      std::vector<double> v;
      for (int64_t h = 0; h < s_.heads; ++h) {
        const double raw = at(row, s_.values() + s_.channels() + h) + value(step_bias_, h);
        const double dt = std::max(std::log1p(std::exp(raw)), static_cast<double>(least_step_));
        const double a = std::exp(-std::exp(value(decay_log_, h)) * dt);
        const int64_t group = h / (s_.heads / s_.groups);
        for (int64_t d = 0; d < s_.head_dim; ++d) {
          const double x = c[static_cast<size_t>(h * s_.head_dim + d)];
          double y = value(skip_, h) * x;
          for (int64_t n = 0; n < s_.state; ++n) {
            double& s = state[static_cast<size_t>((h * s_.head_dim + d) * s_.state + n)];
            s = a * s + dt * x * c[static_cast<size_t>(s_.values() + group * s_.state + n)];
            y += s * c[static_cast<size_t>(s_.values() + (s_.groups + group) * s_.state + n)];
          }
          v.push_back(y * silu(at(row, h * s_.head_dim + d)));
        }
      }
      const int64_t width = s_.values() / s_.groups;
      for (int64_t g = 0; g < s_.groups; ++g) {
        double squares = 0.0;
        for (int64_t i = 0; i < width; ++i)
          squares += v[static_cast<size_t>(g * width + i)] * v[static_cast<size_t>(g * width + i)];
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
        for (int64_t i = g * width; i < (g + 1) * width; ++i)
          outputs.push_back(v[static_cast<size_t>(i)] * factor * value(gain_, i));
      }
    }
    return outputs;
  }

 private:
  Mamba2Shape s_;
  float least_step_;
  std::vector<float> taps_, bias_, decay_log_, step_bias_, skip_, gain_;
  std::vector<std::unique_ptr<backend::Vector>> loaded_;
};

}  // namespace tensorfold::testing
