#include "drafters/copy_drafter.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tensorfold::drafters {
namespace {

std::vector<int32_t> random_tokens(std::mt19937& random, size_t count, int32_t vocabulary) {
  std::uniform_int_distribution<int32_t> token(0, vocabulary - 1);
  std::vector<int32_t> tokens(count);
  for (int32_t& t : tokens) t = token(random);
  return tokens;
}

Draft propose_one(CopyDrafter& drafter, const std::vector<int32_t>& context, int32_t most) {
  const DraftRequest request{0, context, most, {}, {}};
  Draft draft;
  drafter.propose({&request, 1}, {&draft, 1});
  return draft;
}

TEST(CopyDrafter, ProposesWhatFollowedTheSameTokensBefore) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    const std::vector<int32_t> passage = random_tokens(random, 40, 50000);
    std::vector<int32_t> context = passage;
    const std::vector<int32_t> between = random_tokens(random, 30, 50000);
    context.insert(context.end(), between.begin(), between.end());
    const size_t copied = 8 + random() % 10;
    context.insert(context.end(), passage.begin(), passage.begin() + static_cast<std::ptrdiff_t>(copied));
    CopyDrafter drafter;
    drafter.open(0, std::span(context).first(20), 0);
    const Draft draft = propose_one(drafter, context, 8);
    ASSERT_EQ(draft.tokens, std::vector<int32_t>(passage.begin() + static_cast<std::ptrdiff_t>(copied),
                                                 passage.begin() + static_cast<std::ptrdiff_t>(copied) + 8));
  }
}

TEST(CopyDrafter, SaysNothingBelowTheMatchLength) {
  std::vector<int32_t> context{1, 2, 3, 4, 5, 6, 7, 99, 1, 2, 3, 4, 5, 6, 7};
  CopyDrafter drafter;
  drafter.open(0, context, 0);
  EXPECT_TRUE(propose_one(drafter, context, 8).empty());
}

TEST(CopyDrafter, PeriodicTextIsProposedBeyondTheContextsEnd) {
  std::vector<int32_t> context;
  for (int32_t i = 0; i < 23; ++i) context.push_back(i % 3);
  CopyDrafter drafter;
  drafter.open(0, context, 0);
  const Draft draft = propose_one(drafter, context, 8);
  ASSERT_EQ(draft.tokens.size(), 8U);
  for (size_t k = 0; k < draft.tokens.size(); ++k) EXPECT_EQ(draft.tokens[k], static_cast<int32_t>((23 + k) % 3)) << k;
}

TEST(CopyDrafter, TheLongestAgreementWinsOverTheLatest) {
  std::vector<int32_t> tail{1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<int32_t> context{50, 51, 52};
  context.insert(context.end(), tail.begin(), tail.end());
  context.push_back(100);  // after the longer agreement
  context.push_back(61);
  context.insert(context.end(), tail.begin(), tail.end());
  context.push_back(200);  // after the later, shorter one
  context.insert(context.end(), {50, 51, 52});
  context.insert(context.end(), tail.begin(), tail.end());
  CopyDrafter drafter;
  drafter.open(0, context, 0);
  EXPECT_EQ(propose_one(drafter, context, 1).tokens, std::vector<int32_t>{100});
}

TEST(CopyDrafter, WindowsDoubleWhileCopiesLandAndShrinkOnAMiss) {
  std::vector<int32_t> context;
  for (int32_t i = 0; i < 200; ++i) context.push_back(i % 5);
  CopyDrafter drafter;
  drafter.open(0, context, 0);
  Draft draft = propose_one(drafter, context, 100);
  EXPECT_EQ(draft.tokens.size(), 8U);
  drafter.observe(0, draft, 8);
  draft = propose_one(drafter, context, 100);
  EXPECT_EQ(draft.tokens.size(), 16U);
  drafter.observe(0, draft, 3);
  EXPECT_EQ(propose_one(drafter, context, 100).tokens.size(), 8U);
}

TEST(CopyDrafter, FallsSilentAfterMissesAndSpeaksAgain) {
  std::vector<int32_t> context(60, 4);
  CopyDrafter drafter;
  drafter.open(0, context, 0);
  for (int miss = 0; miss < 4; ++miss) drafter.observe(0, propose_one(drafter, context, 8), 0);
  int silent = 0;
  while (propose_one(drafter, context, 8).empty()) ++silent;
  EXPECT_EQ(silent, 16);
}

}  // namespace
}  // namespace tensorfold::drafters
