// The drafters of an engine and the choice among them: who proposes how much for which lane, and what became of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "drafters/draft_policy.h"
#include "drafters/drafter.h"
#include "engine/cache_pool.h"
#include "engine/sequence.h"

namespace tensorfold::engine {

/// What one lane gets for its next window.
struct Proposal {
  int32_t drafter = -1;
  drafters::Draft draft;
};

class DraftPlanner {
 public:
  /// `fixed_drafts` >= 0: the first drafter always proposes so many (tests and measurements); else the policy decides.
  DraftPlanner(std::vector<std::unique_ptr<drafters::Drafter>> drafters, int32_t fixed_drafts);

  /// What the target's forward must leave, over all drafters.
  [[nodiscard]] const drafters::TargetOutputs& wants() const { return wants_; }
  /// The drafters' cache layouts, in order.
  [[nodiscard]] std::vector<backend::CacheLayout> layouts() const;
  /// The drafters' names in order: pages of kept prefixes hold their caches too.
  [[nodiscard]] std::string names() const;
  void attach(CachePool& pool);
  [[nodiscard]] bool empty() const { return drafters_.empty(); }
  [[nodiscard]] std::string_view name(int32_t drafter) const { return at(drafter).name(); }

  /// Follows a sequence that decodes with drafts; `cached` as Drafter::open.
  void open(const Sequence& sequence, int32_t cached);
  void close(const Sequence& sequence);

  /// Proposes for each of `sequences` (opened, decoding): at most `most_of[i]` drafts for the i-th and `most_rows` rows
  /// in all, pending tokens included. A lane whose pages cannot be reserved gets nothing.
  std::vector<Proposal> propose(std::span<Sequence* const> sequences, std::span<const int32_t> most_of,
                                int32_t most_rows, CachePool& pool);
  /// Rows of the last forward that stay, of opened lanes.
  void absorb(std::span<const drafters::KeptRows> kept, backend::Tensor hidden, backend::Tensor taps);
  void observe(const Sequence& sequence, int32_t drafter, const drafters::Draft& draft, int32_t accepted);
  /// A round of `rows` rows for `lanes` pending tokens, without prompt rows, took so long; before observe() of its
  /// windows.
  void record_forward(int32_t rows, int32_t lanes, double seconds);

  /// For measuring costs on purpose: a proposal of up to `most` drafts of one drafter for an opened lane with pages for
  /// them (the first for a lane reads its prompt), and what rounds were measured to take, with a proposal or without.
  drafters::Draft propose_for_calibration(const Sequence& sequence, int32_t drafter, int32_t most);
  void calibrate_forward(int32_t rows, double seconds) { policy_.calibrate_forward(rows, seconds); }
  /// Whole rounds with so many drafts of a drafter, after those without.
  void calibrate_rounds(int32_t drafter, std::span<const drafters::ProposalCost> rounds);
  [[nodiscard]] int32_t count() const { return static_cast<int32_t>(drafters_.size()); }
  /// Whether a drafter proposes from tokens alone, at no cost.
  [[nodiscard]] bool is_free(int32_t drafter) const { return free_[static_cast<size_t>(drafter)]; }
  /// The measured costs on one line, for a log.
  [[nodiscard]] std::string describe_costs() const;

 private:
  [[nodiscard]] drafters::Drafter& at(int32_t drafter) const { return *drafters_[static_cast<size_t>(drafter)]; }
  /// A lane inside propose().
  struct Lane {
    Sequence* sequence = nullptr;
    int32_t room = 0;                    ///< most drafts that rows and pages allow
    std::vector<drafters::Draft> found;  ///< by drafter
    drafters::Grant grant;
  };
  /// Lets a drafter propose for the lanes: as much as was granted to it, or as there is room.
  void ask(int32_t drafter, std::span<Lane> lanes, bool only_granted);
  void grant_fixed(std::span<Lane> lanes, int32_t most_rows) const;
  void grant_by_policy(std::span<Lane> lanes, int32_t most_rows);

  /// Rows of all open lanes that a drafter has yet to read: a prompt's, above all.
  [[nodiscard]] int32_t waiting_rows(int32_t drafter) const;
  /// Drafts that were proposed and not fed.
  struct Unfed {
    int32_t drafter = -1;
    int32_t begin = 0;  ///< tokens that the sequence had
    std::vector<int32_t> tokens;
  };
  /// Compares what was not fed with what the reply became, once that shows, or at its end.
  void judge_unfed(const Sequence& sequence, bool ended);
  /// A proposal of this round that was paid for.
  struct Paid {
    int32_t drafter = -1;
    int32_t lanes = 0;
    int32_t drafts = 0;  ///< of all lanes
    double seconds = 0.0;
  };
  /// Notes what a proposal took that began with `waiting` rows to read.
  void note_proposal(int32_t drafter, std::span<const drafters::Draft> drafts, int32_t waiting, double seconds);

  std::vector<std::unique_ptr<drafters::Drafter>> drafters_;
  std::unordered_map<int32_t, std::vector<bool>> open_lanes_;  ///< by lane: whether each drafter follows it
  std::unordered_map<int32_t, Unfed> unfed_;                   ///< by lane
  Paid paid_;               ///< the steady proposal of this round; record_forward() settles it
  bool odd_round_ = false;  ///< something in this round makes its cost no measure of others
  double dearer_ = 1.0;     ///< what this round's drafts took over what the tables say
  std::vector<bool> free_;  ///< proposes from tokens alone
  drafters::TargetOutputs wants_;
  drafters::DraftPolicy policy_;
  int32_t fixed_drafts_;
};

/// The first `rows` tokens of a draft: parents precede children, so every prefix is a draft.
void cut_draft(drafters::Draft& draft, size_t rows);

}  // namespace tensorfold::engine
