// How many drafts pay: as many tokens a second as the measured acceptance and the measured costs allow, over all lanes
// of a round (engine spec 6). A pure function of what was recorded; it changes speed, never a reply.
//
// Every lane keeps an account of what its drafts gained and lost against plain rounds, and never stakes more than it
// gained and a small allowance: no drafter, however wrong, costs a reply more than that.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "drafters/cost_table.h"

namespace tensorfold::drafters {

/// The chance that draft j + 1 lands when drafts 1..j did: the mean of so many outcomes of that depth, the oldest
/// fading once there are more than the memory holds. Depths that were not tried are believed to be like the deepest
/// that was.
class AcceptanceByDepth {
 public:
  static constexpr size_t kDepths = 64;
  /// Of a drafter over all lanes. `pooled`: every draft behind the first is taken to land alike (copies: they go on or
  /// they end), so that each counts as an observation of all.
  explicit AcceptanceByDepth(double prior, bool pooled = false);
  /// Of one lane: begins with what `shared` believes, as if the lane had seen a few such outcomes itself.
  static AcceptanceByDepth of_lane(const AcceptanceByDepth& shared);
  /// A window of `drafted` drafts of which `accepted` landed.
  void record(int32_t drafted, int32_t accepted);
  /// Chance of draft `depth` (from 0); past the table the last entry.
  [[nodiscard]] double at(int32_t depth) const;
  /// What that chance may well be, for all that is known: its mean and a part of its standard error.
  [[nodiscard]] double at_best(int32_t depth) const;

 private:
  struct Chance {
    double mean = 0.0;
    double outcomes = 0.0;  ///< that the mean stands for
  };
  void learn(Chance& chance, bool landed, double weight) const;
  [[nodiscard]] Chance chance(size_t depth) const;

  std::array<Chance, kDepths> chances_{};
  size_t known_ = 1;  ///< depths that have a chance of their own; pooled: 2 at most
  double memory_ = 0.0;
  bool pooled_ = false;
};

/// One way a lane could draft in this round.
struct DraftOption {
  int32_t drafter = 0;       ///< as add_drafter numbered it
  int32_t most = 0;          ///< drafts it can make at most
  int32_t waiting_rows = 0;  ///< kept rows it must read before it can propose, beyond those of the last round
};

/// What a proposal of one drafter costs.
enum class Proposing {
  free,        ///< nothing (copies)
  one_by_one,  ///< more with every draft (a chain)
  at_once      ///< the same for any number of drafts (a block)
};

struct ProposalCost {
  int32_t drafts = 0;
  double seconds = 0.0;
};

struct LaneOffer {
  int32_t lane = 0;
  std::vector<DraftOption> options;
  int32_t tokens_left = INT32_MAX;  ///< most tokens that the reply may still get
};

/// What a lane shall do: `drafts` of `drafter` (0: a plain row).
struct Grant {
  int32_t drafter = -1;
  int32_t drafts = 0;
  /// Drafts that are proposed and not fed: what they would have been worth shows when the reply has gone on.
  int32_t unfed = 0;
};

class DraftPolicy {
 public:
  struct Options {
    double margin = 1.03;             ///< a drafted round must beat a plain one by this: costs are known no better
    int32_t first_wait = 8;           ///< plain rounds before the first probe; doubles up to longest_wait,
    int32_t longest_wait = 128;       ///< half of which a known drafter waits at least that gives no hope
    int32_t deeper_every = 16;        ///< drafted rounds between tries of one draft more; doubles up to longest_wait
    double allowed_rounds = 1.5;      ///< plain rounds that a lane's drafts may lose
    double allowed_share = 0.015;     ///< and this share of the lane's rounds so far,
    double allowed_of_left = 0.04;    ///< but no more than this share of the rounds that may still come
    double tries_of_left = 0.02;      ///< tries may cost a lane this share of the rounds that may still come
    double probe_rounds = 8.0;        ///< plain rounds that tries of a drafter may cost at once,
    double probe_share = 0.01;        ///< and their share of all rounds
    double trust = 0.8;               ///< of an expected gain, what counts before it was made (of a drafter known well)
    int32_t first_outcomes = 8;       ///< a drafter is tried freely until so many outcomes are known
    double typical_reply = 256.0;     ///< tokens of a reply, before any was seen
    int32_t least_waiting_rows = 16;  ///< so few waiting rows are read without asking whether that pays
  };
  explicit DraftPolicy(Options options)
      : options_(options), typical_reply_(options.typical_reply), probe_credit_(options.probe_rounds) {}
  DraftPolicy() : DraftPolicy(Options{}) {}

  /// `prior`: believed chance of a draft before anything is known.
  int32_t add_drafter(std::string name, double prior, Proposing proposing);
  void open(int32_t lane);
  /// The lane's reply got `tokens` tokens.
  void close(int32_t lane, int32_t tokens = 0);

  /// A forward of `rows` rows in all that held decode windows only took `seconds`, draws and commit included.
  void record_forward(int32_t rows, double seconds);
  /// Proposing `drafts` a lane took `seconds` a lane.
  void record_proposal(int32_t drafter, int32_t drafts, double seconds);
  /// Reading `rows` waiting rows (of all lanes that it reads for) took `seconds`, the proposal itself not counted.
  void record_waiting_rows(int32_t drafter, int32_t rows, double seconds);
  /// `dearer`: what the round's drafts took over what the tables say, 1 where that was not measured. The lane's account
  /// is charged what was taken, so that a wrong table costs no more than a wrong drafter.
  void record_outcome(int32_t lane, int32_t drafter, int32_t drafted, int32_t accepted, double dearer = 1.0);
  /// Of `drafted` unfed drafts the first `right` were what the reply went on with.
  void record_unfed(int32_t lane, int32_t drafter, int32_t drafted, int32_t right);
  /// What a round of `rows` rows costs, measured on purpose.
  void calibrate_forward(int32_t rows, double seconds) { forward_.set(rows, seconds); }
  /// What proposals of so many drafts cost, measured on purpose; all that was known before is forgotten.
  void calibrate_proposal(int32_t drafter, std::span<const ProposalCost> costs);
  void calibrate_waiting_row(int32_t drafter, double seconds) {
    drafters_[static_cast<size_t>(drafter)].seconds_a_waiting_row = seconds;
  }

  /// Whether a drafter should begin to follow a lane: reading `rows` rows may pay within a reply of `tokens` tokens.
  [[nodiscard]] bool may_pay(int32_t drafter, int32_t rows, int32_t tokens) const;
  /// Divides at most `most_rows` rows (pending tokens included) among the lanes. grants[i] answers offers[i].
  std::vector<Grant> allot(std::span<const LaneOffer> offers, int32_t most_rows);

  [[nodiscard]] const CostTable& forward_costs() const { return forward_; }
  /// Seconds of a proposal of `drafts` drafts; 0 while unmeasured.
  [[nodiscard]] double proposal_cost(int32_t drafter, int32_t drafts) const;
  /// Seconds a waiting row takes to read; 0 while unmeasured.
  [[nodiscard]] double waiting_row_cost(int32_t drafter) const {
    return drafters_[static_cast<size_t>(drafter)].seconds_a_waiting_row;
  }
  /// Expected tokens of a round with `drafts` drafts, the target's own token included, as the lane's record stands.
  [[nodiscard]] double expected_tokens(int32_t lane, int32_t drafter, int32_t drafts) const;

 private:
  struct DrafterRecord {
    std::string name;
    Proposing proposing;
    AcceptanceByDepth acceptance;
    CostTable cost;
    int32_t outcomes = 0;
    int32_t wait = 0;                  ///< plain rounds before a probe, as the last lane left it,
    int32_t plain_rounds = 0;          ///< and those that went by since the last one
    double seconds_a_waiting_row = 0;  ///< 0: unmeasured
  };
  [[nodiscard]] bool is_free(int32_t drafter) const {
    return drafters_[static_cast<size_t>(drafter)].proposing == Proposing::free;
  }
  struct LaneRecord {
    std::vector<AcceptanceByDepth> acceptance;  ///< by drafter
    std::vector<int32_t> rounds;                ///< outcomes by drafter
    int32_t plain_rounds = 0;
    int32_t wait = 0;
    int32_t drafted_rounds = 0;  ///< since the last try of one draft more
    int32_t deeper_wait = 0;
    int32_t deeper_from = -1;  ///< the drafts of the round that was tried one deeper; -1: judged
    int32_t preferred = -1;
    int32_t won_drafter = -1;  ///< whose last window was worth what it took,
    int32_t won_drafts = 0;    ///< and how many it had; 0: it was not
    int32_t lanes = 1;         ///< of the round it was last granted in
    double tried = 0.0;        ///< plain rounds that tries were taken to cost it
    double gained = 0.0;       ///< seconds that drafts saved against plain rounds; below 0: lost
    double elapsed = 0.0;      ///< seconds of its rounds, had they been plain
  };
  /// Adds an outcome to what is believed of a drafter, for all lanes and for one; the lane's record or null.
  LaneRecord* learn(int32_t lane, int32_t drafter, int32_t drafted, int32_t accepted);
  struct Choice {
    DraftOption option;   ///< with as many drafts as the lane may stake
    int32_t offered = 0;  ///< drafts of the option as offered
    int32_t best = 0;
    double rate = 0.0;
    int32_t likely = 0;           ///< the deepest with about the highest rate, whether that pays or not
    double expected = 1.0;        ///< tokens of such a window
    int32_t hoped = 0;            ///< the depth whose rate may well be the highest,
    double hope = 0.0;            ///< that rate,
    double hoped_expected = 1.0;  ///< and the tokens that are expected of it all the same
  };

  /// What an option promises by its depth to a lane with `others` rows beside it.
  [[nodiscard]] Choice judge(const LaneRecord& lane, const DraftOption& option, int32_t tokens_left,
                             int32_t others) const;
  /// The option and depth with the highest rate for a lane that stands alone with `others` rows beside it.
  Choice choose_alone(const LaneRecord& lane, const LaneOffer& offer, int32_t others) const;
  /// Whether reading what waits pays by the end of the reply when drafts reach `rate` and plain rounds `plain`.
  [[nodiscard]] double reading_seconds(const DraftOption& option) const;
  [[nodiscard]] bool pays_reading(const DraftOption& option, int32_t tokens_left, double rate, double plain) const;
  /// Seconds that the lane's drafts may still lose; below 0: it is in debt.
  [[nodiscard]] double credit(const LaneRecord& lane) const;
  /// Whether the lane (with `more` seconds beside its own) may stake a window that would get `tokens` tokens for
  /// `extra` seconds more than a plain row. A
  /// part of the tokens that it stands to get counts as gained already, the more of it the better the drafter is known:
  /// else one that pays only when it is deep could never begin.
  [[nodiscard]] bool may_stake(const LaneRecord& lane, int32_t drafter, double extra, double tokens,
                               int32_t tokens_left, int32_t others, double more = 0.0) const;
  /// Seconds that `drafts` drafts add to a round of `lanes` pending tokens.
  [[nodiscard]] double extra_seconds(int32_t lanes, int32_t drafter, int32_t drafts) const;
  /// Adds draft after draft where it raises the round's rate the most.
  void fill(std::span<const Choice> choices, std::span<const LaneOffer> offers, int32_t most_rows,
            std::span<Grant> grants) const;
  void probe(LaneRecord& lane, const Choice& choice, const LaneOffer& offer, int32_t room, Grant& grant);
  /// A try of the choice's drafter: fed where its tokens are expected to be worth their rows (that costs less, and
  /// windows that follow one another land more than windows here and there), else only looked at.
  void try_paid(LaneRecord& lane, const Choice& choice, const LaneOffer& offer, int32_t room, Grant& grant);
  /// The most drafts that cost little more than one to propose.
  [[nodiscard]] int32_t unfed_drafts(const Choice& choice) const;
  void try_deeper(LaneRecord& lane, const Choice& choice, int32_t room, Grant& grant) const;

  Options options_;
  CostTable forward_{0.15};
  std::vector<DrafterRecord> drafters_;
  std::unordered_map<int32_t, LaneRecord> lanes_;
  double typical_reply_;
  int32_t replies_ = 0;  ///< that were counted in it
  double probe_credit_;  ///< plain rounds that tries may cost now
};

}  // namespace tensorfold::drafters
