// Attention over selected positions, grouped-query and latent, and their double-precision references.
#pragma once

#include <optional>

#include "backend/index_part.h"

namespace tensorfold::testing {

/// softmax(scores) over the keys of a row, times their values.
inline std::vector<double> attend(const std::vector<double>& scores, const std::vector<std::vector<double>>& values) {
  const double most = *std::max_element(scores.begin(), scores.end());
  std::vector<double> sum(values.front().size(), 0.0);
  double total = 0.0;
  for (size_t j = 0; j < scores.size(); ++j) {
    const double weight = std::exp(scores[j] - most);
    total += weight;
    for (size_t d = 0; d < sum.size(); ++d) sum[d] += weight * values[j][d];
  }
  for (double& value : sum) value /= total;
  return sum;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}

/// A mixer whose input rows end in an index's columns.
class SparseMixer : public Mixer {
 public:
  SparseMixer(const std::optional<IndexShape>& index, Random& random) {
    if (index) index_.emplace(*index, random);
  }
  [[nodiscard]] virtual int64_t own_width() const = 0;
  [[nodiscard]] int64_t input_width() const override { return own_width() + (index_ ? index_->width() : 0); }
  void load(backend::Backend& backend) override {
    if (index_) index_->load(backend);
  }

 protected:
  [[nodiscard]] backend::CacheLayout layout_of(int64_t width) const {
    backend::CacheLayout layout{{backend::PagedEntry{"keys", width}}};
    if (index_) layout.entries.emplace_back(index_->entry());
    return layout;
  }
  const backend::Selection* choose(backend::Backend& backend, const backend::Plan& plan, backend::Cache& cache,
                                   backend::Tensor input) {
    if (!index_) return nullptr;
    return index_->choose(backend, plan, cache, 1, input.columns(own_width(), index_->width()));
  }
  [[nodiscard]] double at(const std::vector<float>& rows, int64_t row, int64_t column) const {
    return static_cast<double>(rows[static_cast<size_t>(row * input_width() + column)]);
  }
  [[nodiscard]] std::vector<double> columns(const std::vector<float>& rows, int64_t row, int64_t first,
                                            int64_t count) const {
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(at(rows, row, first + i));
    return values;
  }
  [[nodiscard]] std::vector<int64_t> positions(const std::vector<float>& rows, int64_t row) const {
    if (index_) return index_->positions(row, [&](int64_t r, int64_t c) { return at(rows, r, own_width() + c); });
    std::vector<int64_t> seen(static_cast<size_t>(row + 1));
    std::iota(seen.begin(), seen.end(), 0);
    return seen;
  }

 private:
  std::optional<IndexPart> index_;
};

class SparseAttentionMixer : public SparseMixer {
 public:
  SparseAttentionMixer(int32_t heads, int32_t kv_heads, int32_t dim, const IndexShape& index, Random& random)
      : SparseMixer(index, random), heads_(heads), kv_heads_(kv_heads), dim_(dim) {}
  [[nodiscard]] backend::CacheLayout layout() const override { return layout_of(2LL * kv_heads_ * dim_); }
  [[nodiscard]] int64_t own_width() const override { return 1LL * (heads_ + 2 * kv_heads_) * dim_; }
  [[nodiscard]] int64_t output_width() const override { return 1LL * heads_ * dim_; }
  void forward(backend::Backend& backend, const backend::Plan& plan, backend::Cache& cache, backend::Tensor input,
               backend::Tensor output) override {
    backend::Attention a;
    a.cache = &cache;
    a.query = input.columns(0, heads_ * dim_);
    a.key = input.columns(heads_ * dim_, kv_heads_ * dim_);
    a.value = input.columns((heads_ + kv_heads_) * dim_, kv_heads_ * dim_);
    a.heads = heads_;
    a.kv_heads = kv_heads_;
    a.key_dim = dim_;
    a.value_dim = dim_;
    a.scale = 0.25F;
    a.output = output;
    a.selection = choose(backend, plan, cache, input);
    backend.attention(plan, a);
  }
  [[nodiscard]] std::vector<double> reference(const std::vector<float>& rows) const override {
    std::vector<double> outputs;
    for (int64_t row = 0; row < static_cast<int64_t>(rows.size()) / input_width(); ++row) {
      const std::vector<int64_t> seen = positions(rows, row);
      for (int32_t h = 0; h < heads_; ++h) {
        const int64_t kv = h / (heads_ / kv_heads_);
        std::vector<double> scores;
        std::vector<std::vector<double>> values;
        for (const int64_t p : seen) {
          scores.push_back(0.25 *
                           dot(columns(rows, row, h * dim_, dim_), columns(rows, p, (heads_ + kv) * dim_, dim_)));
          values.push_back(columns(rows, p, (heads_ + kv_heads_ + kv) * dim_, dim_));
        }
        const std::vector<double> y = attend(scores, values);
        outputs.insert(outputs.end(), y.begin(), y.end());
      }
    }
    return outputs;
  }

 private:
  int32_t heads_;
  int32_t kv_heads_;
  int32_t dim_;
};

struct LatentShape {
  int32_t heads;
  int32_t key_dim;
  int32_t value_dim;
  int32_t latent;
  int32_t bits;  ///< of the products; 0: bf16
  bool apart;    ///< the halves of the products are matrices of their own
};

class LatentMixer : public SparseMixer {
 public:
  LatentMixer(const LatentShape& shape, const std::optional<IndexShape>& index, Random& random)
      : SparseMixer(index, random), s_(shape) {
    const auto matrix = [&](int64_t outputs, int64_t inputs) {
      return make_matrix(random, outputs, inputs, s_.bits, 64, format::DataType::bf16);
    };
    if (!s_.apart) {
      matrices_.push_back(matrix(1LL * s_.heads * (s_.key_dim + s_.value_dim), s_.latent));
      return;
    }
    for (int32_t h = 0; h < s_.heads; ++h) matrices_.push_back(matrix(s_.latent, s_.key_dim));
    for (int32_t h = 0; h < s_.heads; ++h) matrices_.push_back(matrix(s_.value_dim, s_.latent));
  }
  [[nodiscard]] backend::CacheLayout layout() const override { return layout_of(s_.latent); }
  [[nodiscard]] int64_t own_width() const override { return 1LL * s_.heads * s_.key_dim + s_.latent; }
  [[nodiscard]] int64_t output_width() const override { return 1LL * s_.heads * s_.value_dim; }
  void load(backend::Backend& backend) override {
    SparseMixer::load(backend);
    std::vector<format::Linear> linears;
    for (const TestMatrix& matrix : matrices_) linears.push_back(matrix.linear);
    const size_t half = linears.size() / 2;
    first_ = backend.load_projection(s_.apart ? std::span(linears).first(half) : std::span(linears));
    if (s_.apart) second_ = backend.load_projection(std::span(linears).last(half));
  }
  void forward(backend::Backend& backend, const backend::Plan& plan, backend::Cache& cache, backend::Tensor input,
               backend::Tensor output) override {
    backend::LatentAttention a;
    a.cache = &cache;
    a.query = input.columns(0, 1LL * s_.heads * s_.key_dim);
    a.latent = input.columns(1LL * s_.heads * s_.key_dim, s_.latent);
    a.heads = s_.heads;
    a.key_dim = s_.key_dim;
    a.value_dim = s_.value_dim;
    (s_.apart ? a.absorb : a.joined) = first_.get();
    a.expand = second_.get();
    a.scale = scale();
    a.selection = choose(backend, plan, cache, input);
    a.output = output;
    backend.latent_attention(plan, a);
  }
  [[nodiscard]] std::vector<double> reference(const std::vector<float>& rows) const override {
    std::vector<double> outputs;
    for (int64_t row = 0; row < static_cast<int64_t>(rows.size()) / input_width(); ++row) {
      const std::vector<int64_t> seen = positions(rows, row);
      for (int32_t h = 0; h < s_.heads; ++h) {
        const std::vector<double> query = columns(rows, row, 1LL * h * s_.key_dim, s_.key_dim);
        std::vector<double> scores;
        std::vector<std::vector<double>> values;
        for (const int64_t p : seen) {
          const std::vector<double> latent = columns(rows, p, 1LL * s_.heads * s_.key_dim, s_.latent);
          scores.push_back(static_cast<double>(scale()) * dot(query, key_of(h, latent)));
          values.push_back(value_of(h, latent));
        }
        const std::vector<double> y = attend(scores, values);
        outputs.insert(outputs.end(), y.begin(), y.end());
      }
    }
    return outputs;
  }

 private:
  [[nodiscard]] float scale() const { return 0.1F / static_cast<float>(s_.key_dim); }
  [[nodiscard]] static double weight(const TestMatrix& matrix, int64_t row, int64_t column) {
    return matrix.weights[static_cast<size_t>(row * matrix.linear.inputs + column)];
  }
  [[nodiscard]] std::vector<double> key_of(int32_t head, const std::vector<double>& latent) const {
    std::vector<double> key(static_cast<size_t>(s_.key_dim), 0.0);
    for (int64_t k = 0; k < s_.key_dim; ++k) {
      for (int64_t n = 0; n < s_.latent; ++n) {
        const double w = s_.apart ? weight(matrices_[static_cast<size_t>(head)], n, k)
                                  : weight(matrices_[0], head * (s_.key_dim + s_.value_dim) + k, n);
        key[static_cast<size_t>(k)] += w * latent[static_cast<size_t>(n)];
      }
    }
    return key;
  }
  [[nodiscard]] std::vector<double> value_of(int32_t head, const std::vector<double>& latent) const {
    const TestMatrix& matrix = matrices_[s_.apart ? static_cast<size_t>(s_.heads + head) : 0];
    const int64_t first = s_.apart ? 0 : head * (s_.key_dim + s_.value_dim) + s_.key_dim;
    std::vector<double> value(static_cast<size_t>(s_.value_dim), 0.0);
    for (int64_t v = 0; v < s_.value_dim; ++v) {
      for (int64_t n = 0; n < s_.latent; ++n)
        value[static_cast<size_t>(v)] += weight(matrix, first + v, n) * latent[static_cast<size_t>(n)];
    }
    return value;
  }

  LatentShape s_;
  std::vector<TestMatrix> matrices_;
  std::unique_ptr<backend::Projection> first_, second_;
};

}  // namespace tensorfold::testing
