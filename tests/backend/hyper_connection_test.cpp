// Residuals of several streams: their mean and the gated low-rank hyper-connection, against double precision, with the
// same bits whatever rows travel together.
#include <gtest/gtest.h>

#include "backend/backend_rig.h"

namespace tensorfold::testing {
namespace {

struct Shape {
  int64_t streams = 4;
  int64_t hidden = 0;
  int64_t rank = 0;
  int32_t bits = 0;  ///< of the low-rank matrices; 0: bf16
};
const Shape kShapes[] = {{4, 96, 32, 4}, {4, 640, 64, 4}, {3, 40, 24, 0}};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// Random weights of a connection, and the double-precision mathematics of its two sides.
struct Connection {
  Connection(const Shape& shape, Random& random)
      : s(shape),
        norm(random_floats(random, shape.streams * shape.hidden, 0.5F)),
        down(make_matrix(random, shape.rank, s.streams * s.hidden, shape.bits, 32, format::DataType::bf16)),
        inject(make_matrix(random, shape.streams, s.streams * s.hidden, 0, 0, format::DataType::bf16)),
        up(make_matrix(random, s.streams * s.hidden, shape.rank, shape.bits, 32, format::DataType::bf16)) {}

  [[nodiscard]] int64_t width() const { return s.streams * s.hidden; }

  /// The read's output row, then its gates.
  [[nodiscard]] std::vector<double> read(const float* h) const {
    std::vector<double> n(static_cast<size_t>(width()));
    for (int64_t stream = 0; stream < s.streams; ++stream) {
      double squares = 0.0;
      for (int64_t d = 0; d < s.hidden; ++d) squares += std::pow(static_cast<double>(h[stream * s.hidden + d]), 2);
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(s.hidden) + 1e-6);
      for (int64_t i = stream * s.hidden; i < (stream + 1) * s.hidden; ++i)
        n[static_cast<size_t>(i)] =
            static_cast<double>(h[i]) * factor * static_cast<double>(norm[static_cast<size_t>(i)]);
    }
    const auto share = 1.0 / static_cast<double>(s.streams);
    std::vector<double> low = times(down, n);
    for (double& value : low) value = value * share * sigmoid(value * share);
    const std::vector<double> mix = times(up, low);
    std::vector<double> result(static_cast<size_t>(s.hidden), 0.0);
    for (int64_t i = 0; i < width(); ++i)
      result[static_cast<size_t>(i % s.hidden)] +=
          share * sigmoid(mix[static_cast<size_t>(i)]) * n[static_cast<size_t>(i)];
    for (const double value : times(inject, n)) result.push_back(2.0 * sigmoid(value * share));
    return result;
  }

  static std::vector<double> times(const TestMatrix& matrix, const std::vector<double>& x) {
    std::vector<double> y(static_cast<size_t>(matrix.linear.outputs), 0.0);
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t k = 0; k < x.size(); ++k) y[o] += matrix.weights[o * x.size() + k] * x[k];
    }
    return y;
  }

  Shape s;
  std::vector<float> norm;
  TestMatrix down, inject, up;
};

/// Rows of (output | gates) of a read in this world.
std::vector<float> run_read(const World& world, const Connection& c, const std::vector<float>& rows) {
  const auto backend = make_backend(world);
  const auto count = static_cast<int32_t>(static_cast<int64_t>(rows.size()) / c.width());
  const auto norm = backend->load_vector(c.norm);
  const format::Linear stacked[] = {c.down.linear, c.inject.linear};
  const auto down = backend->load_projection(stacked);
  const auto up = backend->load_projection(std::span(&c.up.linear, 1));
  const auto h = make_tensor(*backend, count, c.width(), rows);
  const auto result = make_tensor(*backend, count, c.s.hidden + c.s.streams);
  const backend::Plan plan = chain_plan(count, 0, true, {});
  backend->run(plan, 1, [&] {
    backend->hyper_connection_read(plan, {.streams = h,
                                          .norm = norm.get(),
                                          .epsilon = 1e-6F,
                                          .down = down.get(),
                                          .up = up.get(),
                                          .output = result.view.columns(0, c.s.hidden),
                                          .gates = result.view.columns(c.s.hidden, c.s.streams)});
  });
  return read_tensor(*backend, result, count);
}

TEST(HyperConnection, ReadMatchesDoublePrecision) {
  Random random(91);
  for (const Shape& shape : kShapes) {
    const Connection connection(shape, random);
    const std::vector<float> rows = random_floats(random, 7 * connection.width());
    std::vector<double> expected;
    for (int64_t row = 0; row < 7; ++row) {
      const std::vector<double> one = connection.read(rows.data() + row * connection.width());
      expected.insert(expected.end(), one.begin(), one.end());
    }
    EXPECT_TRUE(close_to(run_read(worlds().back(), connection, rows), expected, 2e-4, 1e-4));
  }
}

TEST(HyperConnection, RowsAndWorldsChangeNoBits) {
  Random random(92);
  for (const Shape& shape : kShapes) {
    const Connection connection(shape, random);
    const std::vector<float> rows = random_floats(random, 37 * connection.width());
    std::vector<float> singles;
    for (int64_t row = 0; row < 37; ++row) {
      const auto begin = rows.begin() + row * connection.width();
      const std::vector<float> one = run_read(worlds().front(), connection, {begin, begin + connection.width()});
      singles.insert(singles.end(), one.begin(), one.end());
    }
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      EXPECT_TRUE(same_bits(run_read(world, connection, rows), singles));
    }
  }
}

TEST(HyperConnection, WriteAddsTheBranchToEveryStream) {
  Random random(93);
  const int64_t hidden = 50;
  const std::vector<float> h = random_floats(random, 3 * 4 * hidden);
  const std::vector<float> branch = random_floats(random, 3 * hidden);
  const std::vector<float> gates = random_floats(random, 3 * 4);
  std::vector<double> expected;
  for (size_t i = 0; i < h.size(); ++i) {
    const size_t stream = i / hidden;
    expected.push_back(static_cast<double>(h[i]) + static_cast<double>(gates[stream]) *
                                                       static_cast<double>(branch[stream / 4 * hidden + i % hidden]));
  }
  std::vector<float> first;
  for (const World& world : worlds()) {
    const auto backend = make_backend(world);
    const auto streams = make_tensor(*backend, 3, 4 * hidden, h);
    const auto added = make_tensor(*backend, 3, hidden, branch);
    const auto factors = make_tensor(*backend, 3, 4, gates);
    const backend::Plan plan = chain_plan(3, 0, true, {});
    backend->run(plan, 1, [&] {
      backend->hyper_connection_write(plan, {.streams = streams, .branch = added, .gates = factors});
    });
    const std::vector<float> result = read_tensor(*backend, streams, 3);
    EXPECT_TRUE(close_to(result, expected, 1e-6));
    if (first.empty()) first = result;
    EXPECT_TRUE(same_bits(result, first)) << describe(world);
  }
}

TEST(Streams, MeanAddsInStreamOrder) {
  Random random(94);
  const int64_t hidden = 37;
  const std::vector<float> h = random_floats(random, 2 * 4 * hidden);
  std::vector<float> expected;
  for (size_t row = 0; row < 2; ++row) {
    for (size_t d = 0; d < hidden; ++d) {
      float sum = h[row * 4 * hidden + d];
      for (size_t s = 1; s < 4; ++s) sum += h[(row * 4 + s) * hidden + d];
      expected.push_back(sum * 0.25F);
    }
  }
  for (const World& world : worlds()) {
    const auto backend = make_backend(world);
    const auto streams = make_tensor(*backend, 2, 4 * hidden, h);
    const auto mean = make_tensor(*backend, 2, hidden);
    const backend::Plan plan = chain_plan(2, 0, true, {});
    backend->run(plan, 1, [&] { backend->mean_streams(plan, {.input = streams, .output = mean}); });
    EXPECT_TRUE(same_bits(read_tensor(*backend, mean, 2), expected)) << describe(world);
  }
}

}  // namespace
}  // namespace tensorfold::testing
