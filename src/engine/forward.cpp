#include "engine/forward.h"

#include <algorithm>

#include "base/error.h"

namespace tensorfold::engine {
namespace {

constexpr uint64_t target_shape = 0x544152474554;  // Backend::run's key of the target's forward

}  // namespace

std::vector<int32_t> window_depths(std::span<const int32_t> parents, size_t rows) {
  std::vector<int32_t> depths(rows, 0);
  for (size_t row = 0; row < rows; ++row) {
    const int32_t parent = parents.empty() ? static_cast<int32_t>(row) - 1 : parents[row];
    check(parent < static_cast<int32_t>(row), "a window row stands before its parent");
    if (parent >= 0) depths[row] = depths[static_cast<size_t>(parent)] + 1;
  }
  return depths;
}

ForwardRunner::ForwardRunner(backend::Backend& backend, families::Model& model, backend::Cache& cache,
                             const drafters::TargetOutputs& wanted, int32_t most_logit_rows)
    : backend_(backend),
      model_(model),
      cache_(cache),
      wanted_(wanted),
      most_logit_rows_(std::min(most_logit_rows, model.max_rows())),
      logits_(backend.allocate(most_logit_rows_, model.info().vocabulary_size)) {
  const int64_t hidden = model.info().hidden_size;
  if (wanted_.hidden) hidden_ = backend.allocate(model.max_rows(), model.info().hidden_width());
  if (!wanted_.tap_layers.empty()) {
    taps_ = backend.allocate(model.max_rows(), hidden * static_cast<int64_t>(wanted_.tap_layers.size()));
  }
}

void ForwardRunner::run(std::span<const Window> windows) {
  plan_ = {};
  for (const Window& window : windows) {
    const CacheLane& lane = *window.lane;
    check(!window.tokens.empty(), "a window without rows");
    check(!window.keep_all || window.parents.empty(), "a tree cannot be kept whole");
    check(window.parents.empty() || window.parents.size() == window.tokens.size(), "a window's parents do not fit");
    check(window.past.size() == static_cast<size_t>(lane.committed), "a window behind other tokens than its lane's");
    plan_.begin_sequence(lane.committed, lane.state_slot, lane.pages, window.keep_all, window.past);
    const int32_t first = plan_.rows();
    const std::vector<int32_t> depths = window_depths(window.parents, window.tokens.size());
    for (size_t row = 0; row < window.tokens.size(); ++row) {
      const int32_t parent = window.parents.empty() ? static_cast<int32_t>(row) - 1 : window.parents[row];
      const bool wants = window.logits == WantedLogits::all ||
                         (window.logits == WantedLogits::last && row + 1 == window.tokens.size());
      plan_.add_row(window.tokens[row], lane.committed + depths[row], parent < 0 ? -1 : first + parent, wants);
    }
  }
  check(plan_.rows() <= model_.max_rows(), "a forward has more rows than the model takes");
  check(static_cast<int32_t>(plan_.logit_rows.size()) <= most_logit_rows_, "a forward has too many logit rows");
  const families::ForwardOutputs outputs{.logits = plan_.logit_rows.empty() ? backend::Tensor{} : logits_.view,
                                         .hidden = hidden_.view,
                                         .taps = taps_.view,
                                         .tap_layers = wanted_.tap_layers};
  const uint64_t shape = target_shape + (plan_.logit_rows.empty() ? 0 : 1);
  backend_.run(plan_, shape, [&] { model_.forward(plan_, cache_, outputs); });
}

int32_t ForwardRunner::logit_row(size_t i, int32_t row) const {
  const int32_t wanted = first_row(i) + row;
  const auto found = std::lower_bound(plan_.logit_rows.begin(), plan_.logit_rows.end(), wanted);
  check(found != plan_.logit_rows.end() && *found == wanted, "a row without logits was asked for");
  return static_cast<int32_t>(found - plan_.logit_rows.begin());
}

void ForwardRunner::draw(std::span<const backend::DrawRow> rows, std::span<backend::Drawn> out) {
  if (rows.empty()) return;
  backend_.draw(plan_, logits_.view, rows);
  backend_.read_draws(out);
}

void ForwardRunner::commit(std::span<const backend::KeptPath> kept) {
  if (kept.empty()) return;
  std::vector<backend::KeptPath> paths(kept.begin(), kept.end());
  for (backend::KeptPath& path : paths) {
    for (int32_t& row : path.rows) row += first_row(static_cast<size_t>(path.sequence));
  }
  backend_.commit(plan_, cache_, paths);
}

void ForwardRunner::read_logits(int32_t first, int32_t count, std::span<float> out) {
  backend_.read_rows(logits_.view, first, count, out);
}

}  // namespace tensorfold::engine
