#include "cli/memory_plan.h"

#include <random>

#include <gtest/gtest.h>

namespace tensorfold::cli {
namespace {

constexpr uint64_t kGibibyte = 1ull << 30;

TEST(MemoryPlans, AnAnswerOfYesLeavesTheReserveFree) {
  const MemoryPlan plan = plan_memory({16'000'000'000, 65'536, 154'000'000}, 141'000'000'000, 262'144, 4);
  EXPECT_EQ(plan.reserve, 14'100'000'000u);
  EXPECT_EQ(plan.caches, 4 * (262'144ull * 65'536 + 154'000'000));
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan_memory({1, 1, 1}, 8 * kGibibyte, 1, 1).reserve, 4 * kGibibyte);
}

TEST(MemoryPlans, WhatItOffersFitsAndALittleMoreDoesNot) {
  std::mt19937_64 random(11);
  const auto below = [&](uint64_t limit) { return random() % limit; };
  int refused = 0;
  for (int i = 0; i < 2'000; ++i) {
    const MemoryNeeds needs{below(100'000'000'000), 1 + below(500'000), below(1'000'000'000)};
    const uint64_t memory = below(200'000'000'000);
    const auto context = static_cast<int32_t>(256 + below(300'000));
    const auto parallel = static_cast<int32_t>(1 + below(32));
    const MemoryPlan plan = plan_memory(needs, memory, context, parallel);
    if (plan.fits) continue;
    ++refused;
    if (plan.most_context > 0) {
      EXPECT_TRUE(plan_memory(needs, memory, plan.most_context, parallel).fits);
    }
    EXPECT_FALSE(plan_memory(needs, memory, plan.most_context + 256, parallel).fits);
    if (plan.most_parallel > 0) {
      EXPECT_TRUE(plan_memory(needs, memory, context, plan.most_parallel).fits);
    }
    EXPECT_FALSE(plan_memory(needs, memory, context, plan.most_parallel + 1).fits);
    EXPECT_TRUE(plan_memory(needs, plan.smallest_memory, context, parallel).fits);
    EXPECT_FALSE(plan_memory(needs, plan.smallest_memory - 2, context, parallel).fits);
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace tensorfold::cli
