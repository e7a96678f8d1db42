// Feeds one sequence through a model, chunk by chunk, and reads back what the forward left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "families/model.h"

namespace tensorfold::testing {

/// Row-major values of a tensor.
struct Rows {
  int64_t width = 0;
  std::vector<float> values;
  [[nodiscard]] std::span<const float> row(int64_t index) const {
    return std::span(values).subspan(static_cast<size_t>(index * width), static_cast<size_t>(width));
  }
  [[nodiscard]] int64_t count() const { return width == 0 ? 0 : static_cast<int64_t>(values.size()) / width; }
};

inline Rows read_rows(backend::Backend& backend, backend::Tensor tensor, int64_t count) {
  Rows rows{tensor.width, std::vector<float>(static_cast<size_t>(count * tensor.width))};
  backend.read_rows(tensor, 0, count, rows.values);
  return rows;
}

/// The lowest id among the best.
inline int32_t best_id(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class SequenceRunner {
 public:
  /// `taps`: layers whose output every forward leaves.
  SequenceRunner(backend::Backend& backend, families::Model& model, int32_t most_tokens, std::vector<int32_t> taps = {},
                 int32_t page_tokens = 16)
      : backend_(backend), model_(model), taps_(std::move(taps)) {
    const int32_t pages = (most_tokens + page_tokens - 1) / page_tokens;
    const backend::CacheSize size{page_tokens, pages, 1, model.max_rows()};
    cache_ = backend.make_cache(model.cache_layout(), size);
    backend.clear_state(*cache_, 0);
    pages_.resize(static_cast<size_t>(pages));
    std::iota(pages_.rbegin(), pages_.rend(), 0);  // back to front, so that a page is not its own number
    const families::ModelInfo& info = model.info();
    logits_ = backend.allocate(model.max_rows(), info.vocabulary_size);
    hidden_ = backend.allocate(model.max_rows(), info.hidden_width());
    if (!taps_.empty()) {
      tapped_ = backend.allocate(model.max_rows(), info.hidden_size * static_cast<int64_t>(taps_.size()));
    }
  }

  /// Commits `tokens` in one forward and returns the logits of all of them, or of the last.
  Rows feed(std::span<const int32_t> tokens, bool all_logits = true) {
    backend::Plan plan;
    plan.begin_sequence(committed_, 0, pages_, true, past_);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto row = static_cast<int32_t>(i);
      plan.add_row(tokens[i], committed_ + row, row - 1, all_logits || i + 1 == tokens.size());
    }
    backend_.run(plan, 1, [&] {
      model_.forward(plan, *cache_, {.logits = logits_, .hidden = hidden_, .taps = tapped_, .tap_layers = taps_});
    });
    committed_ += plan.rows();
    past_.insert(past_.end(), tokens.begin(), tokens.end());
    rows_ = plan.rows();
    return read_rows(backend_, logits_, static_cast<int64_t>(plan.logit_rows.size()));
  }

  /// The last forward's hidden rows and taps.
  [[nodiscard]] backend::Tensor hidden() const { return hidden_; }
  [[nodiscard]] backend::Tensor taps() const { return tapped_; }
  [[nodiscard]] std::span<const int32_t> pages() const { return pages_; }
  Rows read_hidden() { return read_rows(backend_, hidden_, rows_); }
  Rows read_tap(int64_t index) {
    const Rows all = read_rows(backend_, tapped_, rows_);
    const int64_t width = model_.info().hidden_size;
    Rows one{width, {}};
    for (int32_t row = 0; row < rows_; ++row) {
      const auto values = all.row(row).subspan(static_cast<size_t>(index * width), static_cast<size_t>(width));
      one.values.insert(one.values.end(), values.begin(), values.end());
    }
    return one;
  }

 private:
  backend::Backend& backend_;
  families::Model& model_;
  std::vector<int32_t> taps_;
  std::unique_ptr<backend::Cache> cache_;
  std::vector<int32_t> pages_;
  backend::OwnedTensor logits_, hidden_, tapped_;
  std::vector<int32_t> past_;
  int32_t committed_ = 0;
  int32_t rows_ = 0;
};

}  // namespace tensorfold::testing
