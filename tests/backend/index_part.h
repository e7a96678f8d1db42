// A block index inside a mixer: its columns of the input rows, its operation, and which positions a row attends to in
// double precision.
#pragma once

#include <algorithm>
#include <numeric>

#include "backend/mixer_rig.h"

namespace tensorfold::testing {

struct IndexShape {
  int32_t heads;
  int32_t dim;
  int32_t block;
  int32_t chosen;
  bool gated;      ///< pooled by gates, heads weighted (as glm5_next); else means, norms and rotation (as qwen4_exp)
  int32_t rotary;  ///< frequencies
};

class IndexPart {
 public:
  IndexPart(const IndexShape& shape, Random& random) : s_(shape) {
    query_gain_ = random_floats(random, s_.dim);
    pooled_gain_ = random_floats(random, s_.dim);
    positions_ = random_floats(random, s_.block * s_.dim);
    for (int32_t d = 0; d < s_.rotary; ++d) frequencies_.push_back(std::pow(100.0F, -static_cast<float>(d) / 8.0F));
  }
  [[nodiscard]] int64_t width() const { return s_.heads * s_.dim + s_.dim + (s_.gated ? s_.dim + s_.heads : 0); }
  [[nodiscard]] backend::PagedEntry entry() const { return {"index", (s_.gated ? 2 : 1) * s_.dim}; }
  void load(backend::Backend& backend) {
    loaded_.clear();
    for (const auto* values : {&query_gain_, &pooled_gain_, &positions_, &frequencies_})
      loaded_.push_back(backend.load_vector(*values));
    selection_ = backend.make_selection(1024, s_.chosen, s_.block);
  }
  const backend::Selection* choose(backend::Backend& backend, const backend::Plan& plan, backend::Cache& cache,
                                   int32_t entry, backend::Tensor input) {
    backend::BlockIndex a;
    a.cache = &cache;
    a.entry = entry;
    a.block = s_.block;
    a.chosen = s_.chosen;
    a.heads = s_.heads;
    a.key_dim = s_.dim;
    a.query = input.columns(0, s_.heads * s_.dim);
    a.key = input.columns(s_.heads * s_.dim, s_.dim);
    a.epsilon = 1e-6F;
    a.scale = scale();
    a.selection = selection_.get();
    if (s_.gated) {
      a.gate = input.columns((s_.heads + 1) * s_.dim, s_.dim);
      a.weight = input.columns((s_.heads + 2) * s_.dim, s_.heads);
      a.weight_factor = 0.5F;
      a.gate_position = loaded_[2].get();
    } else {
      a.query_norm = loaded_[0].get();
      a.pooled_norm = loaded_[1].get();
      a.rotary = {.frequencies = loaded_[3].get(), .interleaved = false};
    }
    backend.block_index(plan, a);
    return selection_.get();
  }

  /// What row `row` attends to; `at(row, column)` reads the index's columns.
  template <typename At>
  [[nodiscard]] std::vector<int64_t> positions(int64_t row, const At& at) const {
    const int64_t complete = (row + 1) / s_.block;
    std::vector<int64_t> seen;
    if (complete <= s_.chosen) {
      for (int64_t p = 0; p <= row; ++p) seen.push_back(p);
      return seen;
    }
    std::vector<double> scores;
    for (int64_t b = 0; b < complete; ++b) scores.push_back(score(row, pooled(b, at), at));
    std::vector<int64_t> order(static_cast<size_t>(complete));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    order.resize(static_cast<size_t>(s_.chosen));
    std::sort(order.begin(), order.end());
    for (const int64_t b : order) {
      for (int64_t t = 0; t < s_.block; ++t) seen.push_back(b * s_.block + t);
    }
    for (int64_t p = complete * s_.block; p <= row; ++p) seen.push_back(p);
    return seen;
  }

 private:
  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(s_.dim)); }

  void norm_and_turn(std::vector<double>& head, const std::vector<float>& gain, int64_t position) const {
    double squares = 0.0;
    for (const double v : head) squares += v * v;
    const double factor = 1.0 / std::sqrt(squares / s_.dim + 1e-6);
    for (size_t d = 0; d < head.size(); ++d) head[d] *= factor * static_cast<double>(gain[d]);
    const auto n = static_cast<size_t>(s_.rotary);
    for (size_t f = 0; f < n; ++f) {
      const auto angle = static_cast<double>(static_cast<float>(position) * frequencies_[f]);
      const double x = head[f];
      const double y = head[f + n];
      head[f] = x * std::cos(angle) - y * std::sin(angle);
      head[f + n] = y * std::cos(angle) + x * std::sin(angle);
    }
  }

  template <typename At>
  [[nodiscard]] std::vector<double> pooled(int64_t b, const At& at) const {
    std::vector<double> key(static_cast<size_t>(s_.dim), 0.0);
    for (int32_t d = 0; d < s_.dim; ++d) {
      double total = 0.0;
      for (int64_t t = 0; t < s_.block; ++t) {
        const int64_t p = b * s_.block + t;
        const double gate = s_.gated ? at(p, (s_.heads + 1) * s_.dim + d) +
                                           static_cast<double>(positions_[static_cast<size_t>(t * s_.dim + d)])
                                     : 0.0;
        const double weight = std::exp(gate);
        total += weight;
        key[static_cast<size_t>(d)] += weight * at(p, s_.heads * s_.dim + d);
      }
      key[static_cast<size_t>(d)] /= total;
    }
    if (!s_.gated) norm_and_turn(key, pooled_gain_, b * s_.block);
    return key;
  }

  template <typename At>
  [[nodiscard]] double score(int64_t row, const std::vector<double>& key, const At& at) const {
    double sum = 0.0;
    for (int32_t h = 0; h < s_.heads; ++h) {
      std::vector<double> query;
      for (int32_t d = 0; d < s_.dim; ++d) query.push_back(at(row, h * s_.dim + d));
      if (!s_.gated) norm_and_turn(query, query_gain_, row);
      double match = 0.0;
      for (size_t d = 0; d < key.size(); ++d) match += query[d] * key[d];
      const double weight = s_.gated ? 0.5 * at(row, (s_.heads + 2) * s_.dim + h) : 1.0;
      sum += weight * std::max(0.0, match * static_cast<double>(scale()));
    }
    return sum;
  }

  IndexShape s_;
  std::vector<float> query_gain_, pooled_gain_, positions_, frequencies_;
  std::vector<std::unique_ptr<backend::Vector>> loaded_;
  std::unique_ptr<backend::Selection> selection_;
};

}  // namespace tensorfold::testing
