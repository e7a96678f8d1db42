// Residual streams mixed by doubly stochastic matrices, layer norm and cleared rows, against double precision and in
// every world.
#include <algorithm>

#include <gtest/gtest.h>

#include "backend/backend_rig.h"

namespace tensorfold::testing {
namespace {

using backend::OwnedTensor;
using backend::Plan;

constexpr int64_t kRows = 4;

/// The weights of one row by the formula of the specification (GLM-5.3-Flash 6.2, 3 to 6).
std::vector<double> weights_of(const float* raw, const std::vector<float>& base, const std::vector<float>& scale,
                               size_t n, double epsilon, int rounds) {
  const auto value = [&](size_t i, size_t kind) {
    return static_cast<double>(raw[i]) * static_cast<double>(scale[kind]) + static_cast<double>(base[i]);
  };
  std::vector<double> weights;
  for (size_t s = 0; s < n; ++s) weights.push_back(1.0 / (1.0 + std::exp(-value(s, 0))) + epsilon);
  for (size_t s = n; s < 2 * n; ++s) weights.push_back(2.0 / (1.0 + std::exp(-value(s, 1))));
  std::vector<std::vector<double>> c(n, std::vector<double>(n));
  for (size_t i = 0; i < n; ++i) {
    double sum = 0.0;
    for (size_t j = 0; j < n; ++j) sum += c[i][j] = std::exp(value(2 * n + i * n + j, 2));
    for (double& entry : c[i]) entry = entry / sum + epsilon;
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; round > 0 && i < n; ++i) {
      double sum = epsilon;
      for (const double entry : c[i]) sum += entry;
      for (double& entry : c[i]) entry /= sum;
    }
    for (size_t j = 0; j < n; ++j) {
      double sum = epsilon;
      for (size_t i = 0; i < n; ++i) sum += c[i][j];
      for (size_t i = 0; i < n; ++i) c[i][j] /= sum;
    }
  }
  for (const auto& row : c) weights.insert(weights.end(), row.begin(), row.end());
  return weights;
}

TEST(ManifoldStreams, WeightsReadsAndWritesMatchDoublePrecisionInEveryWorld) {
  Random random(81);
  for (const size_t n : {size_t{4}, size_t{2}, size_t{1}}) {
    const int64_t width = 37;
    const auto count = static_cast<int64_t>(n);
    const int64_t weight_count = count * (count + 2);
    const std::vector<float> raw = random_floats(random, kRows * weight_count, 2.0F);
    const std::vector<float> base = random_floats(random, weight_count);
    const std::vector<float> scale = random_floats(random, 3);
    const std::vector<float> streams = random_floats(random, kRows * count * width);
    const std::vector<float> branch = random_floats(random, kRows * width);
    std::vector<double> weights;
    std::vector<double> read;
    std::vector<double> written;
    for (int64_t row = 0; row < kRows; ++row) {
      const std::vector<double> w = weights_of(raw.data() + row * weight_count, base, scale, n, 1e-6, 20);
      weights.insert(weights.end(), w.begin(), w.end());
      const auto stream = [&](size_t s, int64_t i) {
        return static_cast<double>(streams[static_cast<size_t>((row * count + static_cast<int64_t>(s)) * width + i)]);
      };
      for (int64_t i = 0; i < width; ++i) {
        double sum = 0.0;
        for (size_t s = 0; s < n; ++s) sum += w[s] * stream(s, i);
        read.push_back(sum);
      }
      for (size_t t = 0; t < n; ++t) {
        for (int64_t i = 0; i < width; ++i) {
          double sum = w[n + t] * static_cast<double>(branch[static_cast<size_t>(row * width + i)]);
          for (size_t s = 0; s < n; ++s) sum += w[2 * n + s * n + t] * stream(s, i);
          written.push_back(sum);
        }
      }
    }
    std::vector<float> first;
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      const auto backend = make_backend(world);
      const OwnedTensor w = make_tensor(*backend, kRows, weight_count, raw);
      const OwnedTensor x = make_tensor(*backend, kRows, count * width, streams);
      const OwnedTensor b = make_tensor(*backend, kRows, width, branch);
      const OwnedTensor collected = make_tensor(*backend, kRows, width);
      const auto base_vector = backend->load_vector(base);
      const auto scale_vector = backend->load_vector(scale);
      const Plan plan = chain_plan(kRows, 0, true, {});
      backend->run(plan, 0, [&] {
        backend->stream_weights(plan, {.raw = w,
                                       .base = base_vector.get(),
                                       .scale = scale_vector.get(),
                                       .streams = static_cast<int32_t>(n),
                                       .epsilon = 1e-6F,
                                       .rounds = 20,
                                       .weights = w});
        backend->stream_read(plan, {.streams = x, .weights = w, .output = collected});
        backend->stream_write(plan, {.streams = x, .weights = w, .branch = b});
      });
      EXPECT_TRUE(close_to(read_tensor(*backend, w, kRows), weights, 1e-7, 1e-6));
      EXPECT_TRUE(close_to(read_tensor(*backend, collected, kRows), read, 1e-6, 1e-6));
      std::vector<float> y = read_tensor(*backend, x, kRows);
      EXPECT_TRUE(close_to(y, written, 2e-6, 1e-6));
      if (first.empty()) first = y;
      EXPECT_TRUE(same_bits(y, first));
    }
  }
}

TEST(LayerNorm, MatchesDoublePrecisionInEveryWorld) {
  Random random(82);
  for (const int64_t width : {int64_t{128}, int64_t{45}}) {
    std::vector<float> x = random_floats(random, kRows * width);
    for (float& value : x) value += 3.0F;  // a mean worth subtracting
    const std::vector<float> gain = random_floats(random, width);
    const std::vector<float> bias = random_floats(random, width);
    std::vector<double> expected;
    for (int64_t row = 0; row < kRows; ++row) {
      const auto at = [&](int64_t i) { return static_cast<double>(x[static_cast<size_t>(row * width + i)]); };
      double mean = 0.0;
      double variance = 0.0;
      for (int64_t i = 0; i < width; ++i) mean += at(i) / static_cast<double>(width);
      for (int64_t i = 0; i < width; ++i) variance += (at(i) - mean) * (at(i) - mean) / static_cast<double>(width);
      for (int64_t i = 0; i < width; ++i) {
        const auto k = static_cast<size_t>(i);
        expected.push_back((at(i) - mean) / std::sqrt(variance + 1e-6) * static_cast<double>(gain[k]) +
                           static_cast<double>(bias[k]));
      }
    }
    std::vector<float> first;
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      const auto backend = make_backend(world);
      const OwnedTensor rows = make_tensor(*backend, kRows, width, x);
      const auto weight = backend->load_vector(gain);
      const auto shift = backend->load_vector(bias);
      const Plan plan = chain_plan(kRows, 0, true, {});
      backend->run(plan, 0, [&] {
        backend->layer_norm(
            plan, {.input = rows, .weight = weight.get(), .bias = shift.get(), .epsilon = 1e-6F, .output = rows});
      });
      std::vector<float> y = read_tensor(*backend, rows, kRows);
      EXPECT_TRUE(close_to(y, expected, 5e-6));
      if (first.empty()) first = y;
      EXPECT_TRUE(same_bits(y, first));
    }
  }
}

TEST(ClearPosition, ZeroesRowsAtThatPositionAlone) {
  const auto backend = make_backend(worlds().back());
  const OwnedTensor rows = make_tensor(*backend, 3, 5, std::vector<float>(15, 2.0F));
  Plan plan;
  plan.begin_sequence(0, 0, {}, true);
  plan.add_row(1, 0, -1, false);
  plan.add_row(1, 1, 0, false);
  plan.begin_sequence(7, 1, {}, true);
  plan.add_row(1, 7, -1, false);
  backend->run(plan, 0, [&] { backend->clear_position(plan, 0, rows); });
  const std::vector<float> y = read_tensor(*backend, rows, 3);
  EXPECT_EQ(std::count(y.begin(), y.begin() + 5, 0.0F), 5);
  EXPECT_EQ(std::count(y.begin() + 5, y.end(), 2.0F), 10);
}

}  // namespace
}  // namespace tensorfold::testing
