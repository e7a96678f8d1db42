// What a round costs by its rows and what a proposal costs by its drafts, measured with the tokens of a real reply
// while nothing else runs, so that the draft policy compares measurements and not guesses.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/cache_pool.h"
#include "engine/draft_planner.h"
#include "engine/forward.h"

namespace tensorfold::engine {

class CostCalibration {
 public:
  /// All arguments outlive this object; `window_rows`: the most rows of a round that are worth knowing.
  CostCalibration(CachePool& pool, ForwardRunner& forward, DraftPlanner& drafts, int32_t window_rows)
      : pool_(pool), forward_(forward), drafts_(drafts), window_rows_(window_rows) {}

  /// Measures until everything was measured often enough, the time for it is spent, or `stop` says so (asked between
  /// forwards); what was measured so far counts. `tokens`: a prompt and its reply. Lane 0 must be free.
  void run(std::span<const int32_t> tokens, const std::function<bool()>& stop);
  /// Nothing is left to measure.
  [[nodiscard]] bool done() const { return done_; }

 private:
  /// Feeds the tokens but the last.
  void feed(Sequence& sequence);
  /// One window: the pending token and `drafts`, then what stands at the sequence's beginning, `rows` in all; the first
  /// half stays. Its seconds.
  double measure(Sequence& sequence, std::span<const int32_t> drafts, int32_t rows);
  /// Rounds without a drafter: each twice, since what ran before leaves its traces in the processor's caches.
  void measure_forwards(Sequence& sequence, const std::function<bool()>& stop);
  /// Rounds with one: what a proposal adds to the round, in the proposal and after it.
  void measure_proposals(Sequence& sequence, int32_t drafter, const std::function<bool()>& stop);
  void keep_rows(const Sequence& sequence, int32_t first, int32_t count);
  /// Whether to end; `stop` asked once.
  bool ends(const std::function<bool()>& stop);

  CachePool& pool_;
  ForwardRunner& forward_;
  DraftPlanner& drafts_;
  int32_t window_rows_;
  std::map<int32_t, double> fastest_;                      ///< seconds by rows
  std::map<std::pair<int32_t, int32_t>, double> drafted_;  ///< seconds of a round by drafter and drafts
  double spent_ = 0.0;
  bool interrupted_ = false;
  int32_t runs_ = 0;
  bool done_ = false;
};

}  // namespace tensorfold::engine
