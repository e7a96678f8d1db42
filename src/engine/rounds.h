// Rounds: one forward over all running sequences at a time, on the caller's thread. Deterministic given the order of
// calls; the engine adds the thread and the queue.
//
// A round takes every decoding sequence's pending token with as many drafts as pay, adds prompt rows of those that fill
// within the decode share, runs one forward, draws, keeps the matching paths, commits, and delivers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/cache_pool.h"
#include "engine/draft_planner.h"
#include "engine/draw_rows.h"
#include "engine/forward.h"
#include "engine/prefix_store.h"
#include "engine/prompt_schedule.h"
#include "engine/sequence.h"

namespace tensorfold::engine {

struct RoundOptions {
  int32_t lanes = 1;           ///< running sequences
  int32_t prefill_rows = 512;  ///< most prompt rows in one forward
  int32_t window_rows = 64;    ///< most rows of one sequence's draft window; 1: no drafts
  double decode_share = 0.25;
};

/// Totals over all sequences.
struct RoundTotals {
  uint64_t rounds = 0;
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t reply_tokens = 0;
  uint64_t drafted = 0;
  uint64_t accepted = 0;
};

class Rounds {
 public:
  /// `store` may be null. All arguments outlive this object.
  Rounds(CachePool& pool, ForwardRunner& forward, DraftPlanner& drafts, PrefixStore* store,
         const RoundOptions& options);

  /// Gives a sequence a lane and resumes it from the longest kept prefix. False when no lane is free or the pages for
  /// its tokens cannot be found without taking them from running sequences.
  bool admit(const std::shared_ptr<Sequence>& sequence);
  /// Ends what was cancelled, so that its lanes are free.
  void drop_cancelled();
  /// One round. Finished sequences have left and reported; `yielded` receives those that had to give up their place.
  void step(std::vector<std::shared_ptr<Sequence>>& yielded);
  /// Takes a running sequence's place away; it can be admitted again and loses nothing but time.
  void give_up(const std::shared_ptr<Sequence>& sequence);
  /// Ends a sequence, running or waiting, and reports.
  void finish(const std::shared_ptr<Sequence>& sequence, FinishReason reason, const std::string& error);
  /// Ends every running sequence.
  void finish_all(FinishReason reason, const std::string& error);

  [[nodiscard]] std::span<const std::shared_ptr<Sequence>> running() const { return running_; }
  [[nodiscard]] bool has_free_lane() const { return running_.size() < lanes_.size(); }
  [[nodiscard]] const RoundTotals& totals() const { return totals_; }
  /// Seconds that a prompt's row takes, as measured; 0: nothing was measured yet.
  [[nodiscard]] double prompt_row_seconds() const { return prompt_row_seconds_; }
  /// Prompt and reply of the last sequence that ended well; empty before there was one.
  [[nodiscard]] std::span<const int32_t> last_ended() const { return last_ended_; }

 private:
  struct Round {
    std::vector<SequenceWindow> windows;
    std::vector<drafters::Draft> drafts;  ///< of each window
    int32_t decode_rows = 0;
    int32_t prompt_rows = 0;
    int32_t logit_rows = 0;
  };

  bool make_pages(Sequence& sequence, int32_t tokens, std::vector<std::shared_ptr<Sequence>>& yielded);
  Round compose(std::vector<std::shared_ptr<Sequence>>& yielded);
  /// The sequences that decode, with pages for their pending token.
  std::vector<Sequence*> take_decoding(std::vector<std::shared_ptr<Sequence>>& yielded);
  /// Drafts (or forced tokens, then without a drafter) for each of them.
  std::vector<Proposal> plan_drafts(std::span<Sequence* const> decoding);
  void add_decode_windows(Round& round, std::vector<std::shared_ptr<Sequence>>& yielded);
  void add_prompt_windows(Round& round, std::vector<std::shared_ptr<Sequence>>& yielded);
  [[nodiscard]] int32_t most_drafts(const Sequence& sequence) const;
  void run_forward(const Round& round);
  /// Walks every window, appends what was drawn, and commits the kept paths.
  std::vector<Acceptance> accept(const Round& round, std::span<const backend::Drawn> drawn,
                                 std::vector<std::vector<TokenLogprobs>>& logprobs);
  /// Moves the sequences on and lets drafters and the prefix store see what stays.
  void settle(const Round& round, std::span<const Acceptance> acceptances);
  void count_drafts(const SequenceWindow& window, const drafters::Draft& draft, int32_t accepted);
  void deliver(Sequence& sequence, Acceptance& acceptance, std::span<const TokenLogprobs> logprobs);
  void keep_states(const Sequence& sequence);
  void leave(const std::shared_ptr<Sequence>& sequence);

  CachePool& pool_;
  ForwardRunner& forward_;
  DraftPlanner& drafts_;
  PrefixStore* store_;
  RoundOptions options_;
  DecodeShare share_;
  DrawRows draw_rows_;
  std::vector<std::shared_ptr<Sequence>> running_;  ///< in order of admission
  std::vector<bool> lanes_;                         ///< taken
  RoundTotals totals_;
  std::vector<int32_t> last_ended_;
  double prompt_row_seconds_ = 0.0;
};

}  // namespace tensorfold::engine
