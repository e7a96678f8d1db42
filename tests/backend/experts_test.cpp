// Routed experts against double precision, and their bits whatever rows share the forward.
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "backend/backend_rig.h"

namespace tensorfold::testing {
namespace {

using backend::Activation;
using backend::Plan;
using backend::Routing;
using format::DataType;

enum class Layout { joined, gates_then_ups, one_by_one };

/// A mixture of experts with random weights and its double-precision reference.
struct Mixture {
  Activation activation = Activation::swiglu;
  Routing::Scores scores = Routing::Scores::softmax;
  Layout layout = Layout::joined;
  int64_t hidden = 0;
  int64_t inner = 0;
  int64_t count = 0;
  int32_t chosen = 1;
  int32_t bits = 4;
  bool normalise = true;
  bool corrected = false;
  bool factored = false;
  bool shared = false;
  bool normed = false;
  float factor = 1.0F;
  float limit = 0.0F;

  std::vector<TestMatrix> in = {}, out = {};
  std::vector<float> correction = {}, factors = {}, gain = {};

  [[nodiscard]] bool gated() const { return activation != Activation::relu_squared; }

  void make(Random& random) {
    const size_t matrices = layout == Layout::gates_then_ups ? 2 : 1;
    const int64_t outputs = gated() && layout != Layout::gates_then_ups ? 2 * inner : inner;
    if (layout == Layout::one_by_one) {
      for (int64_t e = 0; e < count; ++e) {
        in.push_back(make_matrix(random, outputs, hidden, bits, 32, DataType::bf16));
        out.push_back(make_matrix(random, hidden, inner, bits, 32, DataType::bf16));
      }
    } else {
      for (size_t m = 0; m < matrices; ++m) in.push_back(make_stack(random, outputs, hidden));
      out.push_back(make_stack(random, hidden, inner));
    }
    correction = random_floats(random, count, 0.2F);
    factors = random_floats(random, count);
    gain = random_floats(random, hidden);
  }

  TestMatrix make_stack(Random& random, int64_t outputs, int64_t inputs) const {
    TestMatrix stack = make_matrix(random, count * outputs, inputs, bits, 32, DataType::bf16);
    stack.linear.stack = count;
    stack.linear.outputs = outputs;
    return stack;
  }

  static std::unique_ptr<backend::Projection> load(backend::Backend& backend, const std::vector<TestMatrix>& matrices) {
    std::vector<format::Linear> linears;
    for (const TestMatrix& matrix : matrices) linears.push_back(matrix.linear);
    return backend.load_projection(linears);
  }

  /// Row `o` of expert `e` in the first product, gates before ups.
  [[nodiscard]] const double* in_row(int64_t e, int64_t o) const {
    switch (layout) {
      case Layout::joined:
        return &in[0].weights[static_cast<size_t>((e * (gated() ? 2 * inner : inner) + o) * hidden)];
      case Layout::gates_then_ups:
        return &in[static_cast<size_t>(o / inner)].weights[static_cast<size_t>((e * inner + o % inner) * hidden)];
      case Layout::one_by_one:
        return &in[static_cast<size_t>(e)].weights[static_cast<size_t>(o * hidden)];
    }
    return nullptr;
  }
  [[nodiscard]] const double* out_row(int64_t e, int64_t o) const {
    if (layout == Layout::one_by_one) return &out[static_cast<size_t>(e)].weights[static_cast<size_t>(o * inner)];
    return &out[0].weights[static_cast<size_t>((e * hidden + o) * inner)];
  }

  [[nodiscard]] double activated(double gate, double up) const {
    switch (activation) {
      case Activation::relu_squared:
        return gate > 0.0 ? gate * gate : 0.0;
      case Activation::geglu:
        return 0.5 * gate * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
      case Activation::swiglu:
        break;
    }
    if (limit > 0.0F) {
      gate = std::min(gate, static_cast<double>(limit));
      up = std::clamp(up, -static_cast<double>(limit), static_cast<double>(limit));
    }
    return gate / (1.0 + std::exp(-gate)) * up;
  }

  /// One row in double precision; `magnitude` becomes a bound on the sums' terms.
  [[nodiscard]] std::vector<double> reference(std::span<const float> row, std::span<const float> logits,
                                              std::span<const float> shared_row, double shared_gate,
                                              double& magnitude) const {
    std::vector<double> x(row.begin(), row.end());
    if (normed) {
      double squares = 0.0;
      for (const double v : x) squares += v * v;
      for (size_t i = 0; i < x.size(); ++i)
        x[i] *= static_cast<double>(gain[i]) / std::sqrt(squares / static_cast<double>(hidden) + 1e-5);
    }
    const auto experts = static_cast<size_t>(count);
    std::vector<double> score(experts);
    for (size_t e = 0; e < experts; ++e) {
      score[e] = std::exp(static_cast<double>(logits[e]));
      if (scores == Routing::Scores::sigmoid) score[e] = score[e] / (1.0 + score[e]);
    }
    if (scores == Routing::Scores::softmax) {
      const double total = std::accumulate(score.begin(), score.end(), 0.0);
      for (double& s : score) s /= total;
    }
    std::vector<size_t> order(experts);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      const auto key = [&](size_t e) { return score[e] + (corrected ? static_cast<double>(correction[e]) : 0.0); };
      return key(a) > key(b);
    });
    double total = 0.0;
    for (int32_t slot = 0; slot < chosen; ++slot) total += score[order[static_cast<size_t>(slot)]];
    std::vector<double> y(static_cast<size_t>(hidden), 0.0);
    for (int32_t slot = 0; slot < chosen; ++slot) {
      const size_t e = order[static_cast<size_t>(slot)];
      double weight = score[e] * static_cast<double>(factor) / (normalise ? total : 1.0);
      if (factored) weight *= static_cast<double>(factors[e]);
      std::vector<double> hidden_values;
      for (int64_t i = 0; i < inner; ++i) {
        const auto product = [&](int64_t o) {
          const double* w = in_row(static_cast<int64_t>(e), o);
          double sum = 0.0;
          for (size_t k = 0; k < x.size(); ++k) sum += w[k] * x[k];
          return sum;
        };
        hidden_values.push_back(activated(product(i), gated() ? product(inner + i) : 0.0));
      }
      for (int64_t o = 0; o < hidden; ++o) {
        const double* w = out_row(static_cast<int64_t>(e), o);
        double sum = 0.0;
        double terms = 0.0;
        for (size_t i = 0; i < hidden_values.size(); ++i) {
          sum += w[i] * hidden_values[i];
          terms += std::abs(w[i] * hidden_values[i]);
        }
        y[static_cast<size_t>(o)] += weight * sum;
        magnitude = std::max(magnitude, std::abs(weight) * terms);
      }
    }
    for (size_t o = 0; shared && o < y.size(); ++o) y[o] += shared_gate * static_cast<double>(shared_row[o]);
    return y;
  }
};

/// The inputs of a forward, row by row.
struct Inputs {
  std::vector<float> x, logits, shared, gate, residual;
  static Inputs random(Random& random, const Mixture& m, int64_t rows) {
    return {random_floats(random, rows * m.hidden), random_floats(random, rows * m.count),
            random_floats(random, rows * m.hidden), random_floats(random, rows),
            random_floats(random, rows * m.hidden)};
  }
  [[nodiscard]] Inputs rows(const Mixture& m, std::span<const int64_t> wanted) const {
    Inputs part;
    for (const int64_t row : wanted) {
      const auto copy = [&](const std::vector<float>& from, std::vector<float>& to, int64_t width) {
        to.insert(to.end(), from.begin() + row * width, from.begin() + (row + 1) * width);
      };
      copy(x, part.x, m.hidden);
      copy(logits, part.logits, m.count);
      copy(shared, part.shared, m.hidden);
      copy(gate, part.gate, 1);
      copy(residual, part.residual, m.hidden);
    }
    return part;
  }
};

class Rig {
 public:
  Rig(const World& world, const Mixture& m) : backend_(make_backend(world)), m_(m) {
    in_ = Mixture::load(*backend_, m.in);
    out_ = Mixture::load(*backend_, m.out);
    correction_ = backend_->load_vector(m.correction);
    factors_ = backend_->load_vector(m.factors);
    gain_ = backend_->load_vector(m.gain);
  }

  std::vector<float> run(const Inputs& inputs, bool add = false) {
    const auto rows = static_cast<int64_t>(inputs.gate.size());
    const auto x = make_tensor(*backend_, rows, m_.hidden, inputs.x);
    const auto logits = make_tensor(*backend_, rows, m_.count, inputs.logits);
    const auto shared = make_tensor(*backend_, rows, m_.hidden, inputs.shared);
    const auto gate = make_tensor(*backend_, rows, 1, inputs.gate);
    const auto output = make_tensor(*backend_, rows, m_.hidden, add ? inputs.residual : std::vector<float>{});
    backend::Experts a;
    a.input = x;
    if (m_.normed) a.norm = gain_.get();
    a.epsilon = 1e-5F;
    a.logits = logits;
    a.routing = {.scores = m_.scores,
                 .correction = m_.corrected ? correction_.get() : nullptr,
                 .chosen = m_.chosen,
                 .normalise = m_.normalise,
                 .factor = m_.factor,
                 .expert_factors = m_.factored ? factors_.get() : nullptr};
    a.in = in_.get();
    a.out = out_.get();
    a.activation = m_.activation;
    a.limit = m_.limit;
    if (m_.shared) {
      a.shared = shared;
      a.shared_gate = gate;
    }
    a.add = add;
    a.output = output;
    const Plan plan = chain_plan(static_cast<int32_t>(rows), 0, true, {});
    backend_->run(plan, 0, [&] { backend_->experts(plan, a); });
    return read_tensor(*backend_, output, rows);
  }

 private:
  std::unique_ptr<backend::Backend> backend_;
  const Mixture& m_;
  std::unique_ptr<backend::Projection> in_, out_;
  std::unique_ptr<backend::Vector> correction_, factors_, gain_;
};

/// The routers and experts of the four families, at small sizes.
std::vector<Mixture> mixtures() {
  std::vector<Mixture> all(4);
  all[0] = {.activation = Activation::relu_squared,
            .scores = Routing::Scores::sigmoid,
            .layout = Layout::one_by_one,
            .hidden = 96,
            .inner = 64,
            .count = 9,
            .chosen = 3,
            .corrected = true,
            .factor = 2.5F};
  all[1] = {.activation = Activation::geglu,
            .hidden = 64,
            .inner = 160,
            .count = 6,
            .chosen = 2,
            .bits = 8,
            .factored = true,
            .normed = true};
  all[2] = {.layout = Layout::gates_then_ups, .hidden = 1088, .inner = 32, .count = 12, .chosen = 5, .shared = true};
  all[3] = {.scores = Routing::Scores::sigmoid,
            .layout = Layout::gates_then_ups,
            .hidden = 64,
            .inner = 96,
            .count = 4,
            .chosen = 4,
            .bits = 0,
            .normalise = false,
            .corrected = true,
            .shared = true,
            .limit = 2.0F};
  Random random(51);
  for (Mixture& m : all) m.make(random);
  return all;
}

TEST(Experts, MatchDoublePrecision) {
  Random random(52);
  for (const Mixture& m : mixtures()) {
    SCOPED_TRACE(::testing::Message() << m.count << " experts of " << m.hidden << " x " << m.inner);
    constexpr int64_t rows = 23;
    const Inputs inputs = Inputs::random(random, m, rows);
    std::vector<double> expected;
    double magnitude = 0.0;
    for (int64_t row = 0; row < rows; ++row) {
      const auto part = [&](const std::vector<float>& values, int64_t width) {
        return std::span(values).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
      };
      const double gate = 1.0 / (1.0 + std::exp(-static_cast<double>(inputs.gate[static_cast<size_t>(row)])));
      const std::vector<double> y = m.reference(part(inputs.x, m.hidden), part(inputs.logits, m.count),
                                                part(inputs.shared, m.hidden), gate, magnitude);
      expected.insert(expected.end(), y.begin(), y.end());
    }
    Rig rig(worlds().back(), m);
    // Relative to the largest sum of a product's magnitudes; both products round.
    EXPECT_TRUE(close_to(rig.run(inputs), expected, magnitude * 2e-5));
    const std::vector<float> added = rig.run(inputs, true);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += static_cast<double>(inputs.residual[i]);
    EXPECT_TRUE(close_to(added, expected, magnitude * 2e-5));
  }
}

TEST(Experts, OtherRowsThreadsAndLevelsChangeNoBits) {
  Random random(53);
  for (const Mixture& m : mixtures()) {
    SCOPED_TRACE(::testing::Message() << m.count << " experts of " << m.hidden << " x " << m.inner);
    constexpr int64_t rows = 40;
    const Inputs inputs = Inputs::random(random, m, rows);
    std::vector<float> alone;
    Rig first(worlds().back(), m);
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<float> y = first.run(inputs.rows(m, std::vector<int64_t>{row}));
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      Rig rig(world, m);
      for (const int64_t count : {int64_t{1}, int64_t{2}, random_integer(random, 3, 12), rows}) {
        std::vector<int64_t> chosen(static_cast<size_t>(rows));
        std::iota(chosen.begin(), chosen.end(), int64_t{0});
        std::shuffle(chosen.begin(), chosen.end(), random);
        chosen.resize(static_cast<size_t>(count));
        std::vector<float> expected;
        for (const int64_t row : chosen)
          expected.insert(expected.end(), alone.begin() + row * m.hidden, alone.begin() + (row + 1) * m.hidden);
        EXPECT_TRUE(same_bits(rig.run(inputs.rows(m, chosen)), expected)) << count << " rows";
      }
    }
  }
}

TEST(Experts, EqualScoresGoToTheLowerId) {
  Random random(54);
  Mixture m{.hidden = 32, .inner = 32, .count = 7, .chosen = 2};
  m.make(random);
  Rig rig(worlds().back(), m);
  Inputs inputs = Inputs::random(random, m, 1);
  inputs.logits = {0.5F, 2.0F, 2.0F, -1.0F, 2.0F, 2.0F, 0.0F};
  const std::vector<float> tied = rig.run(inputs);
  inputs.logits = {-9.0F, 2.0F, 2.0F, -9.0F, 1.0F, 1.0F, -9.0F};
  const std::vector<float> chosen = rig.run(inputs);
  EXPECT_TRUE(same_bits(tied, chosen));  // normalised over the chosen: experts 1 and 2, half each
}

TEST(Experts, ABrokenOrderShows) {
  Random random(55);
  Mixture m{.hidden = 256, .inner = 64, .count = 4, .chosen = 2};
  m.make(random);
  const Inputs inputs = Inputs::random(random, m, 8);
  const auto backend = backend::make_cpu_backend(1, "", true);
  const auto in = Mixture::load(*backend, m.in);
  const auto out = Mixture::load(*backend, m.out);
  const auto run = [&](int64_t first, int64_t rows) {
    std::vector<int64_t> wanted(static_cast<size_t>(rows));
    std::iota(wanted.begin(), wanted.end(), first);
    const Inputs part = inputs.rows(m, wanted);
    const auto x = make_tensor(*backend, rows, m.hidden, part.x);
    const auto logits = make_tensor(*backend, rows, m.count, part.logits);
    const auto output = make_tensor(*backend, rows, m.hidden);
    const Plan plan = chain_plan(static_cast<int32_t>(rows), 0, true, {});
    backend->run(plan, 0, [&] {
      backend->experts(
          plan,
          {.input = x, .logits = logits, .routing = {.chosen = 2}, .in = in.get(), .out = out.get(), .output = output});
    });
    return read_tensor(*backend, output, rows);
  };
  std::vector<float> alone;
  for (int64_t row = 0; row < 8; ++row) {
    const std::vector<float> y = run(row, 1);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  EXPECT_FALSE(same_bits(run(0, 8), alone));
}

}  // namespace
}  // namespace tensorfold::testing
