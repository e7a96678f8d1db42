// One forward: from the rows of several sequences to a plan, the model's outputs, draws and commits. The engine's
// rounds, the load-time row check and the schedule fuzzer all go through here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "drafters/drafter.h"
#include "engine/cache_pool.h"
#include "families/model.h"

namespace tensorfold::engine {

/// Which rows of a window want logits.
enum class WantedLogits { none, last, all };

/// The rows of one sequence in a forward. Its lane has pages for committed + rows tokens (CachePool::reserve).
struct Window {
  const CacheLane* lane = nullptr;
  std::span<const int32_t> tokens;
  std::span<const int32_t> past;     ///< the lane's committed tokens
  std::span<const int32_t> parents;  ///< index into tokens, -1: the committed state; empty: a chain
  bool keep_all = false;             ///< a chain whose rows all stay: the forward commits them itself
  WantedLogits logits = WantedLogits::last;
};

/// Depth of each row of a window (roots 0); `parents` as in Window, `rows` long or empty.
std::vector<int32_t> window_depths(std::span<const int32_t> parents, size_t rows);

/// Output buffers of a model and the steps of one forward. Not thread-safe.
class ForwardRunner {
 public:
  /// `wanted`: what drafters need; most_logit_rows bounds the rows that want logits in one forward.
  ForwardRunner(backend::Backend& backend, families::Model& model, backend::Cache& cache,
                const drafters::TargetOutputs& wanted, int32_t most_logit_rows);

  /// Runs the rows of `windows` in one forward. Windows with keep_all are committed by it; their lanes' `committed`
  /// is the caller's to advance.
  void run(std::span<const Window> windows);
  /// Row index in the outputs of row 0 of window `i` of the last run; its rows are contiguous.
  [[nodiscard]] int32_t first_row(size_t i) const { return plan_.sequences[i].first_row; }
  /// Row of the logits tensor for row `row` of window `i`.
  [[nodiscard]] int32_t logit_row(size_t i, int32_t row) const;
  [[nodiscard]] const backend::Plan& plan() const { return plan_; }

  /// Draws `rows` from the last run's logits and waits for the tokens.
  void draw(std::span<const backend::DrawRow> rows, std::span<backend::Drawn> out);
  /// Keeps paths of the last run; KeptPath::sequence is the window's index, rows are counted inside the window.
  void commit(std::span<const backend::KeptPath> kept);
  /// Copies `count` logit rows from `first` on.
  void read_logits(int32_t first, int32_t count, std::span<float> out);

  [[nodiscard]] backend::Tensor hidden() const { return hidden_.view; }
  [[nodiscard]] backend::Tensor taps() const { return taps_.view; }
  [[nodiscard]] int32_t most_rows() const { return model_.max_rows(); }
  [[nodiscard]] int32_t most_logit_rows() const { return most_logit_rows_; }
  [[nodiscard]] int64_t vocabulary() const { return model_.info().vocabulary_size; }

 private:
  backend::Backend& backend_;
  families::Model& model_;
  backend::Cache& cache_;
  drafters::TargetOutputs wanted_;
  int32_t most_logit_rows_;
  backend::OwnedTensor logits_;
  backend::OwnedTensor hidden_;
  backend::OwnedTensor taps_;
  backend::Plan plan_;
};

}  // namespace tensorfold::engine
