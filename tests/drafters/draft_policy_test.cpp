#include "drafters/draft_policy.h"

#include <random>

#include <gtest/gtest.h>

namespace tensorfold::drafters {
namespace {

// Plays `rounds` rounds of one lane whose drafts land with `chance` each, on a machine whose forward of n rows costs
// 1 + slope (n - 1), and returns tokens a second.
double play(DraftPolicy& policy, int32_t drafter, double chance, double slope, int rounds, std::mt19937& random) {
  std::bernoulli_distribution lands(chance);
  double seconds = 0.0;
  double tokens = 0.0;
  for (int round = 0; round < rounds; ++round) {
    const LaneOffer offer{0, {{drafter, 7}}};
    const Grant grant = policy.allot({&offer, 1}, 16)[0];
    int32_t accepted = 0;
    while (accepted < grant.drafts && lands(random)) ++accepted;
    int32_t right = 0;
    while (right < grant.unfed && lands(random)) ++right;
    policy.record_unfed(0, drafter, grant.unfed, right);
    const double cost = 1.0 + slope * grant.drafts;
    policy.record_forward(1 + grant.drafts, cost);
    if (grant.drafts > 0) policy.record_outcome(0, drafter, grant.drafts, accepted);
    seconds += cost;
    tokens += 1.0 + accepted;
  }
  return tokens / seconds;
}

double best_rate(double chance, double slope) {
  double best = 1.0;
  double landed = 1.0;
  double tokens = 1.0;
  for (int n = 1; n <= 7; ++n) {
    landed *= chance;
    tokens += landed;
    best = std::max(best, tokens / (1.0 + slope * n));
  }
  return best;
}

TEST(DraftPolicy, ReachesTheBestRateOfTheTableAndNeverFallsFarBelowPlainRounds) {
  std::mt19937 random(11);
  for (const double chance : {0.0, 0.2, 0.5, 0.8, 0.95}) {
    for (const double slope : {0.05, 0.2, 0.5, 1.0}) {
      DraftPolicy policy;
      const int32_t drafter = policy.add_drafter("test", 0.8, Proposing::free);
      policy.open(0);
      const double rate = play(policy, drafter, chance, slope, 3000, random);
      EXPECT_GE(rate, 0.9 * best_rate(chance, slope)) << "chance " << chance << " slope " << slope;
      EXPECT_GE(rate, 0.95) << "chance " << chance << " slope " << slope;
    }
  }
}

TEST(DraftPolicy, ProbesOfALosingDrafterBackOffToOneRoundIn128) {
  DraftPolicy policy;
  const int32_t drafter = policy.add_drafter("test", 0.8, Proposing::one_by_one);
  policy.calibrate_proposal(drafter, std::vector<ProposalCost>{{1, 0.2}});
  policy.open(0);
  int32_t probes = 0;
  for (int round = 0; round < 4000; ++round) {
    const LaneOffer offer{0, {{drafter, 4}}};
    const Grant grant = policy.allot({&offer, 1}, 8)[0];
    policy.record_forward(1 + grant.drafts, 1.0 + 0.5 * grant.drafts);
    if (grant.drafts > 0) policy.record_outcome(0, drafter, grant.drafts, 0);
    policy.record_unfed(0, drafter, grant.unfed, 0);
    if (round >= 2000 && grant.drafts + grant.unfed > 0) ++probes;
  }
  EXPECT_LE(probes, 2000 / 128 + 1);
  EXPECT_GE(probes, 1);
}

TEST(DraftPolicy, RowsGoToTheLanesWhoseDraftsLand) {
  DraftPolicy policy;
  const int32_t drafter = policy.add_drafter("test", 0.8, Proposing::free);
  policy.open(0);
  policy.open(1);
  for (int i = 0; i < 100; ++i) {
    policy.record_outcome(0, drafter, 4, 4);
    policy.record_outcome(1, drafter, 4, 0);
    policy.record_forward(1 + i % 10, 1.0 + 0.1 * (i % 10));
  }
  const std::vector<LaneOffer> offers{{0, {{drafter, 4}}}, {1, {{drafter, 4}}}};
  const std::vector<Grant> grants = policy.allot(offers, 6);
  EXPECT_EQ(grants[0].drafts, 4);
  EXPECT_EQ(grants[1].drafts, 0);
}

TEST(DraftPolicy, GrantsNeverExceedTheRowsOrWhatWasOffered) {
  std::mt19937 random(3);
  DraftPolicy policy;
  const int32_t drafter = policy.add_drafter("test", 0.9, Proposing::one_by_one);
  for (int32_t lane = 0; lane < 8; ++lane) policy.open(lane);
  for (int round = 0; round < 2000; ++round) {
    const int32_t lanes = 1 + static_cast<int32_t>(random() % 8);
    const int32_t most_rows = lanes + static_cast<int32_t>(random() % 20);
    std::vector<LaneOffer> offers;
    for (int32_t lane = 0; lane < lanes; ++lane)
      offers.push_back({lane, {{drafter, static_cast<int32_t>(random() % 6)}}});
    const std::vector<Grant> grants = policy.allot(offers, most_rows);
    int32_t rows = lanes;
    for (size_t i = 0; i < grants.size(); ++i) {
      ASSERT_LE(grants[i].drafts, offers[i].options[0].most);
      rows += grants[i].drafts;
      if (grants[i].drafts > 0)
        policy.record_outcome(offers[i].lane, drafter, grants[i].drafts,
                              static_cast<int32_t>(random() % static_cast<uint32_t>(grants[i].drafts + 1)));
    }
    ASSERT_LE(rows, most_rows);
    policy.record_forward(rows, 1.0 + 0.2 * rows);
    policy.record_proposal(drafter, 1 + round % 5, 0.1 * (1 + round % 5));
  }
}

/// A round of n rows as measured on two cores: dear beyond four rows.
double cpu_cost(int32_t rows) { return rows <= 4 ? 1.0 + 0.17 * (rows - 1) : 1.51 + 0.4 * (rows - 4); }

void calibrate(DraftPolicy& policy) {
  for (const int32_t rows : {1, 2, 3, 4, 6, 8, 12, 16, 32, 64}) policy.calibrate_forward(rows, cpu_cost(rows));
}

TEST(DraftPolicy, ADrafterThatIsAlwaysWrongCostsNoReplyATwentieth) {
  DraftPolicy policy;
  const int32_t paid = policy.add_drafter("paid", 0.8, Proposing::one_by_one);
  const int32_t free = policy.add_drafter("free", 0.8, Proposing::free);
  calibrate(policy);
  policy.calibrate_proposal(paid, std::vector<ProposalCost>{{1, 0.15}, {4, 0.5}});
  for (int reply = 0; reply < 20; ++reply) {
    policy.open(0);
    double seconds = 0.0;
    for (int round = 0; round < 64; ++round) {
      const LaneOffer offer{0, {{paid, 4}, {free, 8}}};
      const Grant grant = policy.allot({&offer, 1}, 64)[0];
      seconds += cpu_cost(1 + grant.drafts);
      if (grant.drafter == paid) seconds += policy.proposal_cost(paid, grant.drafts + grant.unfed);
      policy.record_unfed(0, grant.drafter, grant.unfed, 0);
      if (grant.drafts == 0) continue;
      policy.record_outcome(0, grant.drafter, grant.drafts, 0);
    }
    // In the first reply ever a drafter is tried freely.
    EXPECT_LE(seconds, 64.0 / (reply == 0 ? 0.9 : 0.95)) << "reply " << reply;
    policy.close(0, 64);
  }
}

TEST(DraftPolicy, CopiesThatGoOnReachWideWindowsSoon) {
  DraftPolicy policy;
  const int32_t copies = policy.add_drafter("copy", 0.7, Proposing::free);
  calibrate(policy);
  policy.open(0);
  double seconds = 0.0;
  int32_t tokens = 0;
  int32_t window = 8;
  int32_t widest = 0;
  while (tokens < 400) {
    const LaneOffer offer{0, {{copies, std::min(window, 63)}}};
    const Grant grant = policy.allot({&offer, 1}, 64)[0];
    seconds += cpu_cost(1 + grant.drafts);
    tokens += 1 + grant.drafts;
    if (grant.drafts > 0) policy.record_outcome(0, copies, grant.drafts, grant.drafts);
    window = std::min(64, 2 * window);
    widest = std::max(widest, grant.drafts);
  }
  // 4 rows and 64 rows both make 2.4 to 2.7 tokens a plain round's time.
  EXPECT_GE(tokens / seconds, 0.9 * 64.0 / cpu_cost(64));
  EXPECT_GE(widest, 3);
  // Where rows are cheap, the widest window is best and is reached.
  DraftPolicy cheap;
  const int32_t same = cheap.add_drafter("copy", 0.7, Proposing::free);
  for (const int32_t rows : {1, 8, 64}) cheap.calibrate_forward(rows, 1.0 + 0.02 * (rows - 1));
  cheap.open(0);
  int32_t rounds = 0;
  for (int32_t granted = 0; granted < 63; ++rounds) {
    ASSERT_LT(rounds, 16);
    const LaneOffer offer{0, {{same, 63}}};
    granted = cheap.allot({&offer, 1}, 64)[0].drafts;
    cheap.record_outcome(0, same, granted, granted);
  }
}

TEST(DraftPolicy, ADrafterThatPaysOnlyWhenItIsDeepIsFoundByTriesThatAreNotFed) {
  // A block drafter: seven drafts cost what one costs, and only nearly all of them landing is worth it.
  DraftPolicy policy;
  const int32_t block = policy.add_drafter("block", 0.7, Proposing::at_once);
  calibrate(policy);
  policy.calibrate_proposal(block, std::vector<ProposalCost>{{1, 1.5}, {4, 1.5}, {7, 1.5}});
  policy.open(0);
  double seconds = 0.0;
  double tokens = 0.0;
  for (int round = 0; round < 600; ++round) {
    const LaneOffer offer{0, {{block, 7}}};
    const Grant grant = policy.allot({&offer, 1}, 64)[0];
    policy.record_unfed(0, block, grant.unfed, grant.unfed);
    if (grant.drafts > 0) policy.record_outcome(0, block, grant.drafts, grant.drafts);
    if (round < 300) continue;
    seconds += cpu_cost(1 + grant.drafts) + policy.proposal_cost(block, grant.drafts + grant.unfed);
    tokens += 1 + grant.drafts;
  }
  EXPECT_GE(tokens / seconds, 0.9 * 8.0 / (cpu_cost(8) + 1.5));
}

/// A reply of a known text whose hard positions a drafter always misses, as a small model serves it: a plain round
/// costs 1, a window of eight rows four, reading a row that waited a twentieth.
struct Replay {
  std::vector<bool> hard;  ///< by position of the reply
  int32_t most = 7;        ///< drafts of the drafter
  double proposal = 1.7;   ///< of any number of drafts,
  double chained = 0.0;    ///< and more for each behind the first
  double dearer = 1.0;     ///< what drafts really take over what was calibrated

  static double rows(int32_t count) { return count <= 4 ? 1.0 + 0.37 * (count - 1) : 2.1 + 0.51 * (count - 4); }
  [[nodiscard]] double propose(int32_t drafts) const { return drafts > 0 ? proposal + chained * (drafts - 1) : 0.0; }
  [[nodiscard]] int32_t lands(size_t from, int32_t drafts) const {
    int32_t landed = 0;
    while (landed < drafts && from + static_cast<size_t>(landed) < hard.size() &&
           !hard[from + static_cast<size_t>(landed)])
      ++landed;
    return landed;
  }
  void calibrate(DraftPolicy& policy, int32_t drafter) const {
    for (const int32_t count : {1, 2, 3, 4, 6, 8, 12, 16, 64}) policy.calibrate_forward(count, rows(count));
    std::vector<ProposalCost> costs;
    for (const int32_t drafts : {1, 2, 4, 8}) costs.push_back({drafts, propose(drafts)});
    policy.calibrate_proposal(drafter, costs);
    policy.calibrate_waiting_row(drafter, 0.05);
  }
  /// Seconds of the reply when it always drafts so many.
  [[nodiscard]] double always(int32_t drafts) const {
    double seconds = 0.0;
    for (size_t at = 1; at < hard.size(); at += static_cast<size_t>(1 + lands(at, drafts))) {
      seconds += rows(1 + drafts) + propose(drafts);
    }
    return seconds;
  }
  /// Seconds under the policy.
  double play(DraftPolicy& policy, int32_t drafter) const {
    policy.open(0);
    double seconds = 0.0;
    int32_t waiting = 30;
    for (size_t at = 1; at < hard.size();) {
      const auto left = static_cast<int32_t>(hard.size() - at);
      const LaneOffer offer{0, {{drafter, std::min(most, left), waiting}}, left};
      const Grant grant = policy.allot({&offer, 1}, 64)[0];
      const int32_t drafts = std::min(grant.drafts, most);
      const int32_t asked = std::min(std::max(grant.drafts, grant.unfed), most);
      const double extra = dearer * (rows(1 + drafts) - rows(1) + propose(asked));
      seconds += 1.0 + extra;
      if (asked > 0) {
        seconds += 0.05 * waiting;
        waiting = 0;
      }
      const int32_t landed = lands(at, drafts);
      if (drafts > 0) {
        // As the engine does: the tables learn what rounds took, and this round's drafts are charged it.
        const double told = rows(1 + drafts) - rows(1) + policy.proposal_cost(drafter, drafts);
        policy.record_proposal(drafter, drafts, 1.0 + extra - rows(1 + drafts));
        policy.record_outcome(0, drafter, drafts, landed, extra / told);
      }
      if (grant.unfed > 0) policy.record_unfed(0, drafter, asked, lands(at, asked));
      at += static_cast<size_t>(1 + landed);
      waiting += 1 + landed;
    }
    policy.close(0, static_cast<int32_t>(hard.size()));
    return seconds;
  }
};

std::vector<bool> text_with_hard(size_t tokens, double share, std::mt19937& random) {
  std::bernoulli_distribution is_hard(share);
  std::vector<bool> hard(tokens);
  for (size_t i = 0; i < tokens; ++i) hard[i] = is_hard(random);
  return hard;
}

/// What replies of such texts take under the policy, against plain rounds and against the best fixed depth, over all
/// but the first few.
struct Shares {
  double of_serial = 0.0;
  double of_best = 0.0;
};
Shares replay_many(const Replay& kind, double hard, size_t tokens, std::mt19937& random) {
  DraftPolicy policy;
  const int32_t drafter =
      policy.add_drafter("test", 0.7, kind.chained > 0.0 ? Proposing::one_by_one : Proposing::at_once);
  kind.calibrate(policy, drafter);
  std::vector<double> fixed(static_cast<size_t>(kind.most) + 1, 0.0);
  double played = 0.0;
  for (int reply = 0; reply < 40; ++reply) {
    Replay one = kind;
    one.hard = text_with_hard(tokens, hard, random);
    const double seconds = one.play(policy, drafter);
    if (reply < 6) continue;
    played += seconds;
    for (size_t drafts = 0; drafts < fixed.size(); ++drafts) fixed[drafts] += one.always(static_cast<int32_t>(drafts));
  }
  return {fixed[0] / played, *std::min_element(fixed.begin(), fixed.end()) / played};
}

TEST(DraftPolicy, ABlockDrafterThatPaysOnlyWhenDeepIsFoundInShortReplies) {
  std::mt19937 random(5);
  for (const size_t tokens : {size_t{67}, size_t{128}}) {
    for (const double hard : {0.0, 0.02, 0.04}) {
      const Shares shares = replay_many({}, hard, tokens, random);
      EXPECT_GE(shares.of_best, 0.9) << hard << " of " << tokens;
    }
  }
}

TEST(DraftPolicy, ADrafterThatGainsNothingCostsLessThanATwentieth) {
  std::mt19937 random(6);
  const Replay block;
  const Replay chain{.hard = {}, .most = 4, .proposal = 0.6, .chained = 0.5};
  for (const Replay& kind : {block, chain}) {
    for (const double hard : {0.04, 0.08, 0.15, 0.3, 0.6, 1.0}) {
      for (const double dearer : {1.0, 1.3}) {
        Replay replay = kind;
        replay.dearer = dearer;
        for (const size_t tokens : {size_t{8}, size_t{24}, size_t{128}, size_t{300}}) {
          EXPECT_GE(replay_many(replay, hard, tokens, random).of_serial, 0.96)
              << "hard " << hard << ", " << tokens << " tokens, most " << kind.most << ", dearer " << dearer;
        }
      }
    }
  }
}

TEST(DraftPolicy, WaitingRowsAreReadOnlyWhereThatPays) {
  DraftPolicy policy;
  const int32_t paid = policy.add_drafter("paid", 0.9, Proposing::one_by_one);
  for (const int32_t rows : {1, 8}) policy.calibrate_forward(rows, 1.0 + 0.1 * (rows - 1));
  policy.calibrate_proposal(paid, std::vector<ProposalCost>{{1, 0.1}});
  policy.record_waiting_rows(paid, 100, 5.0);
  policy.open(0);
  const auto drafts = [&](int32_t waiting, int32_t left) {
    const LaneOffer offer{0, {{paid, 4, waiting}}, left};
    return policy.allot({&offer, 1}, 16)[0].drafts;
  };
  EXPECT_GT(drafts(4, 8), 0);
  EXPECT_EQ(drafts(1000, 8), 0);    // 50 rounds' time to save a part of 8
  EXPECT_GT(drafts(1000, 500), 0);  // a reply may be long
  EXPECT_GT(drafts(100, 60), 0);
}

TEST(CostTable, IsMonotoneAndInterpolates) {
  CostTable table(0.1);
  table.record(1, 1.0);
  table.record(4, 4.0);
  table.record(8, 3.0);
  EXPECT_DOUBLE_EQ(table.at(1), 1.0);
  EXPECT_DOUBLE_EQ(table.at(2), 2.0);
  EXPECT_DOUBLE_EQ(table.at(8), 4.0);
  EXPECT_GE(table.at(20), table.at(8));
}

}  // namespace
}  // namespace tensorfold::drafters
