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
      const int32_t drafter = policy.add_drafter("test", 0.8, true);
      policy.open(0);
      const double rate = play(policy, drafter, chance, slope, 3000, random);
      EXPECT_GE(rate, 0.9 * best_rate(chance, slope)) << "chance " << chance << " slope " << slope;
      EXPECT_GE(rate, 0.95) << "chance " << chance << " slope " << slope;
    }
  }
}

TEST(DraftPolicy, ProbesOfALosingDrafterBackOffToOneRoundIn128) {
  DraftPolicy policy;
  const int32_t drafter = policy.add_drafter("test", 0.8, true);
  policy.open(0);
  int32_t probes = 0;
  for (int round = 0; round < 4000; ++round) {
    const LaneOffer offer{0, {{drafter, 4}}};
    const Grant grant = policy.allot({&offer, 1}, 8)[0];
    policy.record_forward(1 + grant.drafts, 1.0 + 0.5 * grant.drafts);
    if (grant.drafts > 0) policy.record_outcome(0, drafter, grant.drafts, 0);
    if (round >= 2000 && grant.drafts > 0) ++probes;
  }
  EXPECT_LE(probes, 2000 / 128 + 1);
  EXPECT_GE(probes, 1);
}

TEST(DraftPolicy, RowsGoToTheLanesWhoseDraftsLand) {
  DraftPolicy policy;
  const int32_t drafter = policy.add_drafter("test", 0.8, true);
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
  const int32_t drafter = policy.add_drafter("test", 0.9, false);
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
