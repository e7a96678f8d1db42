// From windows to draws: every drawn row with its position, its settings and what constrains it along its own path.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "backend/draw.h"
#include "engine/sequence.h"

namespace tensorfold::engine {

/// The draws of one round. Rows point into this object.
class DrawRows {
 public:
  explicit DrawRows(int64_t vocabulary) : mask_words_(static_cast<size_t>((vocabulary + 31) / 32)) {}
  void clear();
  /// Adds the drawn rows of `window`, in row order; `logit_row` is the logits row of the first. Sets first_draw.
  void add(SequenceWindow& window, int32_t logit_row);
  [[nodiscard]] std::span<const backend::DrawRow> rows() const { return rows_; }

 private:
  void constrain(Sequence& sequence, std::span<const int32_t> path, backend::DrawRow& row);

  size_t mask_words_;
  std::vector<backend::DrawRow> rows_;
  std::deque<std::vector<uint32_t>> masks_;
  std::deque<std::vector<backend::TokenCount>> counts_;
};

}  // namespace tensorfold::engine
