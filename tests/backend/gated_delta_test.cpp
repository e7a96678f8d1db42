#include <gtest/gtest.h>

#include "backend/mixer_rig.h"

namespace tensorfold::testing {
namespace {

using backend::GatedDeltaShape;

class DeltaMixer : public Mixer {
 public:
  DeltaMixer(const GatedDeltaShape& shape, Random& random) : s_(shape) {
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
    d.output = output;
    backend.gated_delta(plan, d);
  }

  [[nodiscard]] std::vector<double> reference(const std::vector<float>& rows) const override {
    const auto count = static_cast<int64_t>(rows.size()) / input_width();
    const auto at = [&](int64_t row, int64_t column) {
      return row < 0 ? 0.0 : static_cast<double>(rows[static_cast<size_t>(row * input_width() + column)]);
    };
    const auto silu = [](double x) { return x / (1.0 + std::exp(-x)); };
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
                            silu(at(row, s_.channels() + n * s_.value_dim + i)));
        }
      }
    }
    return outputs;
  }

 private:
  GatedDeltaShape s_;
  std::vector<float> taps_, decay_log_, decay_bias_, gain_;
  std::unique_ptr<backend::Vector> convolution_, log_, bias_, norm_;
};

const GatedDeltaShape kShapes[] = {
    {.key_heads = 2, .value_heads = 6, .key_dim = 32, .value_dim = 48, .kernel = 4},
    {.key_heads = 1, .value_heads = 1, .key_dim = 20, .value_dim = 9, .kernel = 3},
    {.key_heads = 2, .value_heads = 2, .key_dim = 128, .value_dim = 128, .kernel = 4},
};

TEST(GatedDelta, MatchesDoublePrecision) {
  Random random(21);
  for (const GatedDeltaShape& shape : kShapes) {
    DeltaMixer mixer(shape, random);
    const std::vector<float> rows = random_floats(random, 60 * mixer.input_width());
    // Relative to outputs of a gated norm (about 1): states forget, so errors stay near one row's.
    EXPECT_TRUE(close_to(run_serially(worlds().back(), mixer, rows, 1).outputs, mixer.reference(rows), 2e-3, 1e-3));
  }
}

TEST(GatedDelta, ChunksWindowsNeighboursAndThreadsChangeNoBits) {
  Random random(22);
  for (const GatedDeltaShape& shape : kShapes) {
    DeltaMixer mixer(shape, random);
    const int64_t total = random_integer(random, 90, 130);
    const std::vector<float> rows[] = {random_floats(random, total * mixer.input_width()),
                                       random_floats(random, total * mixer.input_width())};
    const SerialRun serial[] = {run_serially(worlds().back(), mixer, rows[0], 64),
                                run_serially(worlds().back(), mixer, rows[1], 64)};
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      expect_serial_bits(world, mixer, random, 64, rows, serial);
    }
  }
}

TEST(GatedDelta, TreeNodesHaveTheBitsOfTheirPath) {
  Random random(23);
  for (const GatedDeltaShape& shape : kShapes) {
    DeltaMixer mixer(shape, random);
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      expect_tree_bits(world, mixer, random, 64, static_cast<int32_t>(random_integer(random, 1, 20)), 14);
    }
  }
}

TEST(GatedDelta, CopiedAndRestoredStatesContinueWithTheSameBits) {
  Random random(24);
  DeltaMixer mixer(kShapes[0], random);
  const std::vector<float> rows = random_floats(random, 20 * mixer.input_width());
  const SerialRun serial = run_serially(worlds().back(), mixer, rows, 64);
  MixerSession session(worlds().back(), mixer, 64, 64);
  backend::Plan plan;
  session.add(plan, 0, 12, true);
  session.run(plan, slice_rows(rows, mixer.input_width(), 0, 12));
  std::vector<std::byte> saved(static_cast<size_t>(session.cache().state_bytes()));
  session.backend().copy_state(session.cache(), 0, 1);
  session.backend().read_state(session.cache(), 1, saved);
  session.backend().clear_state(session.cache(), 0);
  session.backend().write_state(session.cache(), 0, saved);
  backend::Plan rest;
  session.add(rest, 0, 8, true);
  const std::vector<float> y = session.run(rest, slice_rows(rows, mixer.input_width(), 12, 8));
  EXPECT_TRUE(same_bits(y, slice_rows(serial.outputs, mixer.output_width(), 12, 8)));
}

}  // namespace
}  // namespace tensorfold::testing
