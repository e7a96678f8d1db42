// Routed experts. (row, slot) pairs are grouped by expert, so that an expert's weights are read once for all its rows;
// a pair's products are multiply_tiles', whose rows do not see each other. Each row then adds its slots in slot order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/scalar_math.h"
#include "backend/keyed_sampling.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

/// Tiles of a unit of work: enough that few rows keep all threads busy, and for many rows a panel's worth.
constexpr int64_t kUnitTiles = 16;

const float* values_of(const Vector* vector) {
  return vector != nullptr ? static_cast<const CpuVector*>(vector)->values.data() : nullptr;
}

int64_t padded(int64_t width) { return (width + kInputPadding - 1) / kInputPadding * kInputPadding; }

/// Scores of a row's experts; NaN scores nothing.
void score_row(const Routing& routing, const float* logits, std::span<double> scores) {
  const auto value = [&](size_t e) { return logits[e] == logits[e] ? static_cast<double>(logits[e]) : -HUGE_VAL; };
  if (routing.scores == Routing::Scores::sigmoid) {
    for (size_t e = 0; e < scores.size(); ++e) scores[e] = portable_sigmoid(value(e));
    return;
  }
  double highest = -HUGE_VAL;
  for (size_t e = 0; e < scores.size(); ++e) highest = std::max(highest, value(e));
  double sum = 0.0;
  for (size_t e = 0; e < scores.size(); ++e) sum += scores[e] = keyed::exponential(value(e) - highest);
  for (double& score : scores) score /= sum;
}

/// The routing rule of backend/operations/experts.h for one row.
void choose_experts(const Routing& routing, const float* logits, std::span<double> scores, std::span<int32_t> order,
                    int32_t* ids, float* weights) {
  score_row(routing, logits, scores);
  const float* correction = values_of(routing.correction);
  const auto key = [&](int32_t id) {
    const auto e = static_cast<size_t>(id);
    return correction != nullptr ? scores[e] + static_cast<double>(correction[e]) : scores[e];
  };
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + routing.chosen, order.end(), [&](int32_t a, int32_t b) {
    const double key_a = key(a);
    const double key_b = key(b);
    return key_a != key_b ? key_a > key_b : a < b;
  });
  double sum = 1e-20;
  for (int32_t slot = 0; slot < routing.chosen; ++slot)
    sum += scores[static_cast<size_t>(order[static_cast<size_t>(slot)])];
  const float* factors = values_of(routing.expert_factors);
  for (int32_t slot = 0; slot < routing.chosen; ++slot) {
    const auto id = static_cast<size_t>(order[static_cast<size_t>(slot)]);
    double weight = (routing.normalise ? scores[id] / sum : scores[id]) * static_cast<double>(routing.factor);
    if (factors != nullptr) weight *= static_cast<double>(factors[id]);
    ids[slot] = static_cast<int32_t>(id);
    weights[slot] = static_cast<float>(weight);
  }
}

void check_experts(const Experts& a, const CpuProjection& in, const CpuProjection& out) {
  const Routing& routing = a.routing;
  const auto count = static_cast<size_t>(a.logits.width);
  check(routing.chosen >= 1 && routing.chosen <= a.logits.width, "more experts chosen than there are");
  check(routing.correction == nullptr || routing.correction->size() == a.logits.width, "a correction an expert");
  check(routing.expert_factors == nullptr || routing.expert_factors->size() == a.logits.width, "a factor an expert");
  check(out.parts.size() == count && (in.parts.size() == count || in.parts.size() == 2 * count),
        "expert matrices that do not fit the router");
  const int64_t joined = in.parts.front().outputs * static_cast<int64_t>(in.parts.size() / count);
  const int64_t gates = a.activation == Activation::relu_squared ? 1 : 2;
  check(joined == gates * out.inputs(), "an expert's first product that does not fit its second");
  check(in.inputs() == a.input.width && out.parts.front().outputs == a.output.width, "experts of another width");
  check(a.norm == nullptr || a.norm->size() == a.input.width, "a norm weight of another width");
  check(!a.shared || a.shared.width == a.output.width, "a shared expert of another width");
}

}  // namespace

/// The pairs of a forward, grouped by expert, rows ascending inside a group.
struct CpuBackend::ExpertPairs {
  struct Group {
    int32_t expert = 0;
    int64_t first = 0;  ///< pair
    int64_t count = 0;
  };
  int64_t experts = 0;
  std::vector<Group> groups;      ///< experts with rows, ascending
  std::vector<int32_t> rows;      ///< of a pair
  std::vector<int32_t> group_of;  ///< of a pair: index into groups
  std::vector<int64_t> pair_of;   ///< [row][slot]
  std::vector<float> weights;     ///< [row][slot]
};

CpuBackend::ExpertPairs CpuBackend::route(const Plan& plan, const Experts& a) {
  const auto slots = static_cast<size_t>(a.routing.chosen);
  const auto experts = static_cast<size_t>(a.logits.width);
  const auto count = static_cast<size_t>(plan.rows()) * slots;
  ExpertPairs pairs;
  pairs.experts = a.logits.width;
  pairs.weights.resize(count);
  std::vector<int32_t> ids(count);
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    std::vector<double> scores(experts);
    std::vector<int32_t> order(experts);
    for (int64_t row = begin; row < end; ++row) {
      const size_t first = static_cast<size_t>(row) * slots;
      choose_experts(a.routing, row_of(a.logits, row), scores, order, &ids[first], &pairs.weights[first]);
    }
  });
  std::vector<int64_t> next(experts + 1, 0);  // where an expert's next pair goes
  for (const int32_t id : ids) ++next[static_cast<size_t>(id) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<int32_t> group_of_expert(experts);
  for (size_t e = 0; e < experts; ++e) {
    if (next[e + 1] == next[e]) continue;
    group_of_expert[e] = static_cast<int32_t>(pairs.groups.size());
    pairs.groups.push_back({static_cast<int32_t>(e), next[e], next[e + 1] - next[e]});
  }
  pairs.rows.resize(count);
  pairs.group_of.resize(count);
  pairs.pair_of.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const auto e = static_cast<size_t>(ids[i]);
    const int64_t pair = next[e]++;
    pairs.pair_of[i] = pair;
    pairs.rows[static_cast<size_t>(pair)] = static_cast<int32_t>(i / slots);
    pairs.group_of[static_cast<size_t>(pair)] = group_of_expert[e];
  }
  return pairs;
}

void CpuBackend::multiply_pairs(const CpuProjection& weights, const ExpertPairs& pairs, const float* x, float* to,
                                int64_t stride) {
  struct Unit {
    const ExpertPairs::Group* group;
    const PackedMatrix* matrix;
    int64_t column;  ///< of the matrix's first output
    int64_t tile;
  };
  std::vector<Unit> units;
  for (const ExpertPairs::Group& group : pairs.groups) {
    int64_t column = 0;
    for (auto part = static_cast<size_t>(group.expert); part < weights.parts.size();
         part += static_cast<size_t>(pairs.experts)) {
      const PackedMatrix& matrix = weights.parts[part];
      for (int64_t tile = 0; tile < matrix.tiles; tile += kUnitTiles) units.push_back({&group, &matrix, column, tile});
      column += matrix.outputs;
    }
  }
  threads_.run(static_cast<int64_t>(units.size()), [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      const Unit& unit = units[static_cast<size_t>(i)];
      const PackedMatrix& matrix = *unit.matrix;
      multiply_tiles(matrix, unit.tile, std::min(kUnitTiles, matrix.tiles - unit.tile),
                     x + unit.group->first * matrix.padded_inputs, unit.group->count, false,
                     to + unit.group->first * stride + unit.column + unit.tile * kTileOutputs, stride, worker);
    }
  });
}

void CpuBackend::experts(const Plan& plan, const Experts& a) {
  const auto& in = *static_cast<const CpuProjection*>(a.in);
  const auto& out = *static_cast<const CpuProjection*>(a.out);
  check_experts(a, in, out);
  const ExpertPairs pairs = route(plan, a);
  const auto count = static_cast<int64_t>(pairs.rows.size());
  const int64_t inner_width = out.inputs();
  const int64_t joined_width = a.activation == Activation::relu_squared ? inner_width : 2 * inner_width;
  const int64_t in_padded = padded(a.input.width);
  const int64_t inner_padded = padded(inner_width);
  float* x = experts_.floats(count * (in_padded + joined_width + inner_padded + a.output.width));
  float* joined = x + count * in_padded;
  float* inner = joined + count * joined_width;
  float* results = inner + count * inner_padded;

  const float* norm = values_of(a.norm);
  const auto stage = [&](int64_t width, int64_t to_width, float* staged, const auto& fill) {
    threads_.run(count, [&](int64_t begin, int64_t end, int worker) {
      float* row = worker_floats(worker, to_width);
      std::fill(row + width, row + to_width, 0.0F);
      for (int64_t pair = begin; pair < end; ++pair) {
        const auto p = static_cast<size_t>(pair);
        const ExpertPairs::Group& group = pairs.groups[static_cast<size_t>(pairs.group_of[p])];
        fill(pair, row);
        place_row(row, to_width, pair - group.first, group.count, staged + group.first * to_width);
      }
    });
  };
  stage(a.input.width, in_padded, x, [&](int64_t pair, float* to) {
    const float* from = row_of(a.input, pairs.rows[static_cast<size_t>(pair)]);
    if (norm != nullptr) {
      kernels_.rms_norm(from, norm, a.input.width, a.epsilon, to);
    } else {
      std::memcpy(to, from, static_cast<size_t>(a.input.width) * sizeof(float));
    }
  });
  multiply_pairs(in, pairs, x, joined, joined_width);
  stage(inner_width, inner_padded, inner, [&](int64_t pair, float* to) {
    activate(a.activation, a.limit, joined + pair * joined_width, inner_width, to);
  });
  multiply_pairs(out, pairs, inner, results, a.output.width);

  const int64_t slots = a.routing.chosen;
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int worker) {
    float* sum = worker_floats(worker, a.output.width);
    for (int64_t row = begin; row < end; ++row) {
      std::fill(sum, sum + a.output.width, 0.0F);
      for (int64_t i = row * slots; i < (row + 1) * slots; ++i) {
        const auto place = static_cast<size_t>(i);
        kernels_.add_scaled(pairs.weights[place], results + pairs.pair_of[place] * a.output.width, a.output.width, sum);
      }
      if (a.shared) {
        const float gate = a.shared_gate ? static_cast<float>(portable_sigmoid(*row_of(a.shared_gate, row))) : 1.0F;
        kernels_.add_scaled(gate, row_of(a.shared, row), a.output.width, sum);
      }
      float* to = row_of(a.output, row);
      if (a.add) kernels_.add(to, a.output.width, sum);
      std::memcpy(to, sum, static_cast<size_t>(a.output.width) * sizeof(float));
    }
  });
}

}  // namespace tensorfold::backend::cpu
