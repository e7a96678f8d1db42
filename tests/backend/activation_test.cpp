// Activations behind a product, normed addition and the soft cap, against double precision and in every world.
#include <algorithm>

#include <gtest/gtest.h>

#include "backend/backend_rig.h"

namespace tensorfold::testing {
namespace {

using backend::Plan;
using backend::Project;
using format::DataType;

constexpr int64_t kRows = 5;

/// Rows of the product, with what `epilogue` makes of it.
std::vector<float> product(backend::Backend& backend, const backend::Projection& weights, const std::vector<float>& x,
                           Project::Epilogue epilogue, int64_t width, float limit = 0.0F) {
  const auto input = make_tensor(backend, kRows, weights.inputs(), x);
  const auto output = make_tensor(backend, kRows, width);
  const Plan plan = chain_plan(kRows, 0, true, {});
  backend.run(plan, 0, [&] {
    backend.project(plan,
                    {.weights = &weights, .input = input, .epilogue = epilogue, .limit = limit, .output = output});
  });
  return read_tensor(backend, output, kRows);
}

/// The epilogue over a plain product's rows of twice `width` (or, squared ReLU, `width`).
std::vector<double> expected(const std::vector<float>& y, Project::Epilogue epilogue, int64_t width, double limit) {
  std::vector<double> result;
  const int64_t joined = epilogue == Project::Epilogue::relu_squared ? width : 2 * width;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      double gate = static_cast<double>(y[static_cast<size_t>(row * joined + i)]);
      if (epilogue == Project::Epilogue::relu_squared) {
        result.push_back(gate > 0.0 ? gate * gate : 0.0);
        continue;
      }
      double up = static_cast<double>(y[static_cast<size_t>(row * joined + width + i)]);
      if (epilogue == Project::Epilogue::geglu) {
        result.push_back(0.5 * gate *
                         (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up);
        continue;
      }
      gate = std::min(gate, limit);
      up = std::clamp(up, -limit, limit);
      result.push_back(gate / (1.0 + std::exp(-gate)) * up);
    }
  }
  return result;
}

TEST(Activation, BehindAProductMatchesDoublePrecisionInEveryWorld) {
  Random random(71);
  constexpr int64_t width = 41;
  const TestMatrix matrix = make_matrix(random, 2 * width, 64, 4, 64, DataType::bf16);
  const std::vector<float> x = random_floats(random, kRows * 64, 0.3F);
  for (const auto epilogue : {Project::Epilogue::geglu, Project::Epilogue::relu_squared, Project::Epilogue::swiglu}) {
    const int64_t outputs = epilogue == Project::Epilogue::relu_squared ? 2 * width : width;
    std::vector<float> first;
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      const auto backend = make_backend(world);
      const auto weights = backend->load_projection(std::span(&matrix.linear, 1));
      const std::vector<float> y = product(*backend, *weights, x, Project::Epilogue::store, 2 * width);
      const std::vector<float> actual = product(*backend, *weights, x, epilogue, outputs, 1.5F);
      // GELU's tail is e^-|..| of a difference: absolute there.
      EXPECT_TRUE(close_to(actual, expected(y, epilogue, outputs, 1.5), 1e-6, 2e-6));
      if (first.empty()) first = actual;
      EXPECT_TRUE(same_bits(actual, first));
    }
  }
}

TEST(NormAdd, MatchesDoublePrecisionInEveryWorldAlsoInPlace) {
  Random random(72);
  constexpr int64_t width = 90;
  const std::vector<float> x = random_floats(random, kRows * width, 4.0F);
  const std::vector<float> residual = random_floats(random, kRows * width);
  const std::vector<float> gain = random_floats(random, width);
  std::vector<double> reference;
  for (int64_t row = 0; row < kRows; ++row) {
    double squares = 0.0;
    for (int64_t i = 0; i < width; ++i) {
      const auto value = static_cast<double>(x[static_cast<size_t>(row * width + i)]);
      squares += value * value;
    }
    for (int64_t i = 0; i < width; ++i) {
      const auto at = static_cast<size_t>(row * width + i);
      const double normed = static_cast<double>(x[at]) / std::sqrt(squares / static_cast<double>(width) + 1e-6);
      reference.push_back(
          (static_cast<double>(residual[at]) + normed * static_cast<double>(gain[static_cast<size_t>(i)])) * 0.7);
    }
  }
  std::vector<float> first;
  for (const World& world : worlds()) {
    SCOPED_TRACE(describe(world));
    const auto backend = make_backend(world);
    const auto weight = backend->load_vector(gain);
    const auto input = make_tensor(*backend, kRows, width, x);
    const auto stream = make_tensor(*backend, kRows, width, residual);
    const auto apart = make_tensor(*backend, kRows, width);
    const Plan plan = chain_plan(kRows, 0, true, {});
    const auto add_into = [&](backend::Tensor output) {
      backend->run(plan, 0, [&] {
        backend->norm_add(plan, {.input = input,
                                 .weight = weight.get(),
                                 .epsilon = 1e-6F,
                                 .residual = stream,
                                 .factor = 0.7F,
                                 .output = output});
      });
      return read_tensor(*backend, output, kRows);
    };
    const std::vector<float> actual = add_into(apart);
    EXPECT_TRUE(close_to(actual, reference, 1e-6, 1e-6));
    EXPECT_TRUE(same_bits(add_into(stream), actual));
    if (first.empty()) first = actual;
    EXPECT_TRUE(same_bits(actual, first));
  }
}

TEST(SoftCap, MatchesDoublePrecisionInEveryWorld) {
  Random random(73);
  std::vector<float> x = random_floats(random, 2 * 70, 25.0F);
  x[3] = 0.0F;
  x[4] = 5000.0F;
  x[5] = -5000.0F;
  std::vector<double> reference;
  for (const float value : x) reference.push_back(30.0 * std::tanh(static_cast<double>(value) / 30.0));
  std::vector<float> first;
  for (const World& world : worlds()) {
    SCOPED_TRACE(describe(world));
    const auto backend = make_backend(world);
    const auto values = make_tensor(*backend, 2, 70, x);
    Plan plan = chain_plan(kRows, 0, true, {});
    plan.logit_rows = {1, 4};
    backend->run(plan, 0,
                 [&] { backend->soft_cap(plan, {.values = values, .cap = 30.0F, .rows = backend::RowSet::logits}); });
    const std::vector<float> actual = read_tensor(*backend, values, 2);
    EXPECT_TRUE(close_to(actual, reference, 30.0 * 4e-7));
    if (first.empty()) first = actual;
    EXPECT_TRUE(same_bits(actual, first));
  }
}

}  // namespace
}  // namespace tensorfold::testing
