#include <gtest/gtest.h>

#include "backend/backend_rig.h"

namespace tensorfold::testing {
namespace {

using backend::Plan;
using backend::Project;
using format::DataType;

struct Case {
  int64_t outputs;
  int64_t inputs;
  int32_t bits;
  int32_t group;
  DataType type;
};

const Case kCases[] = {
    {37, 64, 4, 64, DataType::bf16},   {64, 1152, 4, 64, DataType::bf16}, {5, 96, 4, 32, DataType::f16},
    {33, 3584, 4, 128, DataType::f32}, {19, 2048, 4, 32, DataType::bf16}, {21, 192, 2, 64, DataType::bf16},
    {21, 320, 3, 32, DataType::bf16},  {22, 1280, 5, 64, DataType::bf16}, {23, 128, 6, 128, DataType::f16},
    {24, 1088, 8, 64, DataType::bf16}, {41, 1030, 0, 0, DataType::bf16},  {7, 40, 0, 0, DataType::f16},
    {9, 2100, 0, 0, DataType::f32},
};

/// Rows [0, rows) of x times the matrix, in a plan of that many rows.
std::vector<float> product(backend::Backend& backend, const backend::Projection& weights, const std::vector<float>& x,
                           int64_t first, int64_t rows) {
  const auto begin = x.begin() + first * weights.inputs();
  const auto input =
      make_tensor(backend, rows, weights.inputs(), std::vector<float>(begin, begin + rows * weights.inputs()));
  const auto output = make_tensor(backend, rows, weights.outputs());
  const Plan plan = chain_plan(static_cast<int32_t>(rows), 0, true, {});
  backend.run(plan, 0, [&] { backend.project(plan, {.weights = &weights, .input = input, .output = output}); });
  return read_tensor(backend, output, rows);
}

TEST(Product, GivesEveryRowTheSameBitsInEveryWorldAndMatchesDoublePrecision) {
  Random random(1);
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.outputs << "x" << c.inputs << " bits " << c.bits << " group " << c.group);
    const TestMatrix matrix = make_matrix(random, c.outputs, c.inputs, c.bits, c.group, c.type);
    constexpr int64_t rows = 31;
    const std::vector<float> x = random_floats(random, rows * c.inputs);
    std::vector<double> reference;
    double largest = 0.0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < c.outputs; ++o) {
        double sum = 0.0;
        double magnitude = 0.0;
        for (int64_t k = 0; k < c.inputs; ++k) {
          const double term = static_cast<double>(x[static_cast<size_t>(r * c.inputs + k)]) *
                              matrix.weights[static_cast<size_t>(o * c.inputs + k)];
          sum += term;
          magnitude += std::abs(term);
        }
        reference.push_back(sum);
        largest = std::max(largest, magnitude);
      }
    }
    std::vector<float> expected;
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      const auto backend = backend::make_cpu_backend(world.threads, world.level);
      const auto weights = backend->load_projection(std::span(&matrix.linear, 1));
      if (expected.empty()) {
        for (int64_t r = 0; r < rows; ++r) {
          const std::vector<float> row = product(*backend, *weights, x, r, 1);
          expected.insert(expected.end(), row.begin(), row.end());
        }
        // A chain of at most 64 + 4 + 4 roundings, each half a unit of at most the sum of magnitudes.
        EXPECT_TRUE(close_to(expected, reference, largest * 72 * 0x1p-24));
      }
      for (const int64_t count : {int64_t{1}, int64_t{2}, random_integer(random, 3, 6), random_integer(random, 7, 12),
                                  random_integer(random, 13, 24), rows}) {
        const int64_t first = random_integer(random, 0, rows - count);
        const auto begin = expected.begin() + first * c.outputs;
        EXPECT_TRUE(same_bits(product(*backend, *weights, x, first, count),
                              std::vector<float>(begin, begin + count * c.outputs)))
            << count << " rows";
      }
    }
  }
}

TEST(Product, TheBrokenOrderForTestsOfTheLawBreaksIt) {
  Random random(4);
  const TestMatrix matrix = make_matrix(random, 64, 256, 4, 64, DataType::bf16);
  const std::vector<float> x = random_floats(random, 2 * 256);
  const auto backend = backend::make_cpu_backend(1, "", true);
  const auto weights = backend->load_projection(std::span(&matrix.linear, 1));
  std::vector<float> alone = product(*backend, *weights, x, 0, 1);
  const std::vector<float> second = product(*backend, *weights, x, 1, 1);
  alone.insert(alone.end(), second.begin(), second.end());
  EXPECT_FALSE(same_bits(product(*backend, *weights, x, 0, 2), alone));
}

TEST(Product, StackingAndEpiloguesChangeNoBits) {
  Random random(2);
  const TestMatrix gate = make_matrix(random, 50, 192, 4, 64, DataType::bf16);
  const TestMatrix up = make_matrix(random, 50, 192, 8, 32, DataType::f16);
  const format::Linear stacked[] = {gate.linear, up.linear};
  const std::vector<float> x = random_floats(random, 3 * 192);
  const std::vector<float> residual = random_floats(random, 3 * 100);
  std::vector<float> first_world;
  for (const World& world : worlds()) {
    SCOPED_TRACE(describe(world));
    const auto backend = backend::make_cpu_backend(world.threads, world.level);
    const auto both = backend->load_projection(stacked);
    const auto gate_alone = backend->load_projection(std::span(stacked, 1));
    const auto up_alone = backend->load_projection(std::span(stacked + 1, 1));
    const std::vector<float> y = product(*backend, *both, x, 0, 3);
    const std::vector<float> g = product(*backend, *gate_alone, x, 0, 3);
    const std::vector<float> u = product(*backend, *up_alone, x, 0, 3);
    std::vector<float> joined;
    for (int64_t r = 0; r < 3; ++r) {
      joined.insert(joined.end(), g.begin() + r * 50, g.begin() + (r + 1) * 50);
      joined.insert(joined.end(), u.begin() + r * 50, u.begin() + (r + 1) * 50);
    }
    EXPECT_TRUE(same_bits(y, joined));

    const auto input = make_tensor(*backend, 3, 192, x);
    const auto added = make_tensor(*backend, 3, 100, residual);
    const auto gated = make_tensor(*backend, 3, 50);
    const Plan plan = chain_plan(3, 0, true, {});
    backend->run(plan, 0, [&] {
      backend->project(plan,
                       {.weights = both.get(), .input = input, .epilogue = Project::Epilogue::add, .output = added});
      backend->project(plan,
                       {.weights = both.get(), .input = input, .epilogue = Project::Epilogue::swiglu, .output = gated});
    });
    std::vector<float> sum = residual;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
    EXPECT_TRUE(same_bits(read_tensor(*backend, added, 3), sum));
    const std::vector<float> inner = read_tensor(*backend, gated, 3);
    std::vector<double> reference;
    for (size_t i = 0; i < g.size(); ++i) {
      const auto a = static_cast<double>(g[i]);
      reference.push_back(a / (1.0 + std::exp(-a)) * static_cast<double>(u[i]));
    }
    EXPECT_TRUE(close_to(inner, reference, 0.0, 4e-7));
    if (first_world.empty()) first_world = inner;
    EXPECT_TRUE(same_bits(inner, first_world));
  }
}

TEST(Product, NormalisesItsInputAsTheNormDoesAndTakesOnlyLogitRows) {
  Random random(3);
  const TestMatrix matrix = make_matrix(random, 30, 72, 0, 0, DataType::bf16);
  const std::vector<float> x = random_floats(random, 6 * 72, 3.0F);
  const std::vector<float> gain = random_floats(random, 72);
  for (const World& world : worlds()) {
    SCOPED_TRACE(describe(world));
    const auto backend = backend::make_cpu_backend(world.threads, world.level);
    const auto weights = backend->load_projection(std::span(&matrix.linear, 1));
    const auto norm = backend->load_vector(gain);
    const auto input = make_tensor(*backend, 6, 72, x);
    const auto normed = make_tensor(*backend, 6, 72);
    const auto two_steps = make_tensor(*backend, 6, 30);
    const auto one_step = make_tensor(*backend, 2, 30);
    Plan plan = chain_plan(6, 0, true, {});
    plan.logit_rows = {1, 4};
    backend->run(plan, 0, [&] {
      backend->rms_norm(plan, {.input = input, .weight = norm.get(), .epsilon = 1e-6F, .output = normed});
      backend->project(plan, {.weights = weights.get(), .input = normed, .output = two_steps});
      backend->project(plan, {.weights = weights.get(),
                              .input = input,
                              .norm = norm.get(),
                              .epsilon = 1e-6F,
                              .output = one_step,
                              .rows = backend::RowSet::logits});
    });
    const std::vector<float> all = read_tensor(*backend, two_steps, 6);
    std::vector<float> wanted(all.begin() + 30, all.begin() + 60);
    wanted.insert(wanted.end(), all.begin() + 120, all.begin() + 150);
    EXPECT_TRUE(same_bits(read_tensor(*backend, one_step, 2), wanted));
  }
}

}  // namespace
}  // namespace tensorfold::testing
