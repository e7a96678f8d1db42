// Attention with random norms and frequencies, and its double-precision reference.
#pragma once

#include "backend/mixer_rig.h"

namespace tensorfold::testing {

struct AttentionShape {
  int32_t heads;
  int32_t kv_heads;
  int32_t key_dim;
  int32_t value_dim;
  int32_t rotary;  ///< frequencies
  bool interleaved;
  bool gated;
  int32_t window;
  bool norms;
  bool values_from_keys = false;  ///< values are the raw keys, each head normed without a weight
  int32_t idle = 0;               ///< further frequencies of zero: their pairs stay
};

class AttentionMixer : public Mixer {
 public:
  AttentionMixer(const AttentionShape& shape, Random& random) : s_(shape) {
    query_gain_ = random_floats(random, s_.key_dim);
    key_gain_ = random_floats(random, s_.key_dim);
    for (int32_t d = 0; d < s_.rotary; ++d) frequencies_.push_back(std::pow(100.0F, -static_cast<float>(d) / 8.0F));
    frequencies_.resize(static_cast<size_t>(s_.rotary + s_.idle), 0.0F);
    scale_ = 1.0F / std::sqrt(static_cast<float>(s_.key_dim));
  }
  [[nodiscard]] backend::CacheLayout layout() const override {
    return {{backend::PagedEntry{"keys", s_.kv_heads * (s_.key_dim + s_.value_dim)}}};
  }
  [[nodiscard]] int64_t query_width() const { return s_.heads * s_.key_dim * (s_.gated ? 2 : 1); }
  [[nodiscard]] int64_t key_width() const { return s_.kv_heads * s_.key_dim; }
  [[nodiscard]] int64_t value_width() const { return s_.kv_heads * s_.value_dim; }
  [[nodiscard]] int64_t input_width() const override { return query_width() + key_width() + value_width(); }
  [[nodiscard]] int64_t output_width() const override { return s_.heads * s_.value_dim; }
  void load(backend::Backend& backend) override {
    query_norm_ = backend.load_vector(query_gain_);
    key_norm_ = backend.load_vector(key_gain_);
    rotation_ = backend.load_vector(frequencies_);
  }
  void forward(backend::Backend& backend, const backend::Plan& plan, backend::Cache& cache, backend::Tensor input,
               backend::Tensor output) override {
    backend::Attention a;
    a.cache = &cache;
    a.query = input.columns(0, query_width());
    a.key = input.columns(query_width(), key_width());
    a.value = input.columns(query_width() + key_width(), value_width());
    if (s_.values_from_keys) a.value = a.key;
    a.normalise_values = s_.values_from_keys;
    a.heads = s_.heads;
    a.kv_heads = s_.kv_heads;
    a.key_dim = s_.key_dim;
    a.value_dim = s_.value_dim;
    if (s_.norms) {
      a.query_norm = query_norm_.get();
      a.key_norm = key_norm_.get();
    }
    a.epsilon = 1e-6F;
    if (s_.rotary > 0) a.rotary = {.frequencies = rotation_.get(), .interleaved = s_.interleaved};
    a.scale = scale_;
    a.window = s_.window;
    a.gated = s_.gated;
    a.bidirectional = bidirectional;
    a.output = output;
    backend.attention(plan, a);
  }

  [[nodiscard]] std::vector<double> head_of(const std::vector<float>& rows, int64_t row, int64_t offset, int64_t dim,
                                            const std::vector<float>* gain) const {
    std::vector<double> head;
    double squares = 0.0;
    for (int64_t d = 0; d < dim; ++d) {
      head.push_back(static_cast<double>(rows[static_cast<size_t>(row * input_width() + offset + d)]));
      squares += head.back() * head.back();
    }
    if (gain == nullptr) return head;
    if (s_.norms) {
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(dim) + 1e-6);
      for (size_t d = 0; d < head.size(); ++d) head[d] *= factor * static_cast<double>((*gain)[d]);
    }
    for (int32_t f = 0; f < s_.rotary; ++f) {
      const auto a = static_cast<size_t>(s_.interleaved ? 2 * f : f);
      const auto b = static_cast<size_t>(s_.interleaved ? 2 * f + 1 : f + s_.rotary + s_.idle);
      const auto angle = static_cast<double>(static_cast<float>(row) * frequencies_[static_cast<size_t>(f)]);
      const double x = head[a];
      const double y = head[b];
      head[a] = x * std::cos(angle) - y * std::sin(angle);
      head[b] = y * std::cos(angle) + x * std::sin(angle);
    }
    return head;
  }

  [[nodiscard]] std::vector<double> value_of(const std::vector<float>& rows, int64_t row, int64_t kv) const {
    const int64_t offset = query_width() + (s_.values_from_keys ? 0 : key_width()) + kv * s_.value_dim;
    std::vector<double> value = head_of(rows, row, offset, s_.value_dim, nullptr);
    double squares = 0.0;
    for (const double v : value) squares += v * v;
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(s_.value_dim) + 1e-6);
    for (double& v : value) v *= s_.values_from_keys ? factor : 1.0;
    return value;
  }

  [[nodiscard]] std::vector<double> reference(const std::vector<float>& rows) const override {
    const auto count = static_cast<int64_t>(rows.size()) / input_width();
    std::vector<double> outputs;
    for (int64_t row = 0; row < count; ++row) {
      for (int32_t h = 0; h < s_.heads; ++h) {
        const int64_t step = s_.gated ? 2 * s_.key_dim : s_.key_dim;
        const std::vector<double> query = head_of(rows, row, h * step, s_.key_dim, &query_gain_);
        const int64_t kv = h / (s_.heads / s_.kv_heads);
        const int64_t last = bidirectional ? count - 1 : row;
        const int64_t first = s_.window > 0 ? std::max<int64_t>(0, row - s_.window + 1) : 0;
        std::vector<double> sum(static_cast<size_t>(s_.value_dim), 0.0);
        double total = 0.0;
        for (int64_t p = first; p <= last; ++p) {
          const std::vector<double> key = head_of(rows, p, query_width() + kv * s_.key_dim, s_.key_dim, &key_gain_);
          double score = 0.0;
          for (size_t d = 0; d < key.size(); ++d) score += query[d] * key[d];
          const double weight = std::exp(score * static_cast<double>(scale_));
          total += weight;
          const std::vector<double> value = value_of(rows, p, kv);
          for (size_t d = 0; d < value.size(); ++d) sum[d] += weight * value[d];
        }
        for (int32_t d = 0; d < s_.value_dim; ++d) {
          double y = sum[static_cast<size_t>(d)] / total;
          if (s_.gated) {
            const auto gate =
                static_cast<double>(rows[static_cast<size_t>(row * input_width() + h * step + s_.key_dim + d)]);
            y /= 1.0 + std::exp(-gate);
          }
          outputs.push_back(y);
        }
      }
    }
    return outputs;
  }

  bool bidirectional = false;

 private:
  AttentionShape s_;
  std::vector<float> query_gain_, key_gain_, frequencies_;
  float scale_ = 1.0F;
  std::unique_ptr<backend::Vector> query_norm_, key_norm_, rotation_;
};

}  // namespace tensorfold::testing
