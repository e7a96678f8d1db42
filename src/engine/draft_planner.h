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
  /// A round of `rows` rows without prompt rows took so long.
  void record_forward(int32_t rows, double seconds) { policy_.record_forward(rows, seconds); }

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

  /// Whether a proposal for these lanes costs what it costs round after round: each was asked in the last round too, so
  /// that the drafter has no rows to catch up with (a prompt's, above all).
  [[nodiscard]] bool is_steady(int32_t drafter, std::span<const drafters::DraftRequest> requests) const;

  std::vector<std::unique_ptr<drafters::Drafter>> drafters_;
  /// By lane and drafter: rounds since it last proposed for the lane; missing: it never did.
  std::unordered_map<int32_t, std::unordered_map<int32_t, int32_t>> rounds_since_;
  std::vector<bool> free_;  ///< proposes from tokens alone
  drafters::TargetOutputs wants_;
  drafters::DraftPolicy policy_;
  int32_t fixed_drafts_;
};

/// The first `rows` tokens of a draft: parents precede children, so every prefix is a draft.
void cut_draft(drafters::Draft& draft, size_t rows);

}  // namespace tensorfold::engine
