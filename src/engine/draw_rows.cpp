#include "engine/draw_rows.h"

#include <algorithm>

namespace tensorfold::engine {

void DrawRows::clear() {
  rows_.clear();
  masks_.clear();
  counts_.clear();
}

void DrawRows::add(SequenceWindow& window, int32_t logit_row) {
  Sequence& sequence = *window.sequence;
  window.first_draw = rows_.size();
  // The tokens below the first drawn row on each row's own path: what the reply would have gained before its draw.
  std::vector<std::vector<int32_t>> paths(window.tokens.size());
  for (int32_t r = window.first_drawn; r < window.rows(); ++r) {
    auto& path = paths[static_cast<size_t>(r)];
    if (r > window.first_drawn) {
      path = paths[static_cast<size_t>(window.parent(r))];
      path.push_back(window.tokens[static_cast<size_t>(r)]);
    }
    const int32_t root = sequence.lane.committed + window.first_drawn;
    backend::DrawRow row;
    row.logit_row = logit_row + (r - window.first_drawn);
    row.position = root + static_cast<int32_t>(path.size()) + 1;
    row.settings = sequence.request.sampling;
    row.top_logprobs = sequence.request.top_logprobs;
    constrain(sequence, path, row);
    rows_.push_back(row);
  }
}

void DrawRows::constrain(Sequence& sequence, std::span<const int32_t> path, backend::DrawRow& row) {
  const Request& request = sequence.request;
  row.penalties.biases = request.logit_bias;
  if (sequence.has_penalties()) {
    row.penalties.repetition = request.repetition_penalty;
    row.penalties.frequency = request.frequency_penalty;
    row.penalties.presence = request.presence_penalty;
    counts_.push_back(sequence.counts.along(path));
    row.penalties.counts = counts_.back();
  }
  if (!sequence.constraint.active()) return;
  row.forced = sequence.constraint.forced(path);
  if (row.forced >= 0) return;
  masks_.emplace_back(mask_words_, 0U);
  if (sequence.constraint.mask(path, masks_.back())) {
    row.mask = masks_.back();
  } else {
    masks_.pop_back();
  }
}

}  // namespace tensorfold::engine
