// How many drafts pay: as many tokens a second as the measured acceptance and the measured costs allow, over all lanes
// of a round (engine spec 6). A pure function of what was recorded; it changes speed, never a reply.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace tensorfold::drafters {

/// Seconds of something by a count (rows of a forward, drafts of a proposal): running means where measured, straight
/// lines between, never falling with the count.
class CostTable {
 public:
  /// `guess(n)` of an unmeasured table is first * (1 + slope * (n - 1)).
  explicit CostTable(double slope) : slope_(slope) {}
  void record(int32_t count, double seconds);
  [[nodiscard]] double at(int32_t count) const;
  [[nodiscard]] bool measured() const { return !means_.empty(); }
  [[nodiscard]] bool measured_at(int32_t count) const { return means_.contains(count); }

 private:
  double slope_;
  std::map<int32_t, double> means_;
};

/// The chance that draft j + 1 lands when drafts 1..j did.
class AcceptanceByDepth {
 public:
  static constexpr size_t kDepths = 16;
  explicit AcceptanceByDepth(double prior) { chances_.fill(prior); }
  /// A window of `drafted` drafts of which `accepted` landed; `weight` of the new observation.
  void record(int32_t drafted, int32_t accepted, double weight);
  /// Chance of draft `depth` (from 0); past the table the last entry.
  [[nodiscard]] double at(int32_t depth) const;

 private:
  std::array<double, kDepths> chances_{};
};

/// One way a lane could draft in this round.
struct DraftOption {
  int32_t drafter = 0;  ///< as add_drafter numbered it
  int32_t most = 0;     ///< drafts it can make at most
};

struct LaneOffer {
  int32_t lane = 0;
  std::vector<DraftOption> options;
};

/// What a lane shall do: `drafts` of `drafter` (0: a plain row).
struct Grant {
  int32_t drafter = -1;
  int32_t drafts = 0;
};

class DraftPolicy {
 public:
  struct Options {
    double margin = 1.03;    ///< a drafted round must beat a plain one by this
    int32_t first_wait = 8;  ///< plain rounds before the first probe; doubles up to longest_wait
    int32_t longest_wait = 128;
    int32_t deeper_every = 16;  ///< drafted rounds between tries of one draft more
  };
  explicit DraftPolicy(Options options) : options_(options) {}
  DraftPolicy() : DraftPolicy(Options{}) {}

  /// `prior`: believed chance of a draft before anything is known. `free`: proposing costs nothing (copies).
  int32_t add_drafter(std::string name, double prior, bool free);
  void open(int32_t lane);
  void close(int32_t lane);

  /// A forward of `rows` rows in all that held decode windows only took `seconds`, draws and commit included.
  void record_forward(int32_t rows, double seconds);
  /// Proposing `drafts` a lane took `seconds` a lane.
  void record_proposal(int32_t drafter, int32_t drafts, double seconds);
  void record_outcome(int32_t lane, int32_t drafter, int32_t drafted, int32_t accepted);

  /// Divides at most `most_rows` rows (pending tokens included) among the lanes. grants[i] answers offers[i].
  std::vector<Grant> allot(std::span<const LaneOffer> offers, int32_t most_rows);

  [[nodiscard]] const CostTable& forward_costs() const { return forward_; }
  /// Expected tokens of a round with `drafts` drafts, the target's own token included, as the lane's record stands.
  [[nodiscard]] double expected_tokens(int32_t lane, int32_t drafter, int32_t drafts) const;

 private:
  struct DrafterRecord {
    std::string name;
    bool free;
    AcceptanceByDepth acceptance;
    CostTable cost;
  };
  struct LaneRecord {
    std::vector<AcceptanceByDepth> acceptance;  ///< by drafter
    std::vector<int32_t> rounds;                ///< outcomes by drafter
    int32_t plain_rounds = 0;
    int32_t wait = 0;
    int32_t drafted_rounds = 0;
    int32_t preferred = -1;
  };
  struct Choice {
    DraftOption option;
    int32_t best = 0;
    double rate = 0.0;
  };

  [[nodiscard]] double proposal_cost(int32_t drafter, int32_t drafts) const;
  /// The option and depth with the highest rate for a lane that stands alone with `others` rows beside it.
  Choice choose_alone(const LaneRecord& lane, const LaneOffer& offer, int32_t others) const;
  /// Adds draft after draft where it raises the round's rate the most.
  void fill(std::span<const Choice> choices, std::span<const LaneOffer> offers, int32_t most_rows,
            std::span<Grant> grants) const;
  void probe(LaneRecord& lane, const Choice& choice, int32_t room, Grant& grant) const;

  Options options_;
  CostTable forward_{0.15};
  std::vector<DrafterRecord> drafters_;
  std::unordered_map<int32_t, LaneRecord> lanes_;
};

}  // namespace tensorfold::drafters
