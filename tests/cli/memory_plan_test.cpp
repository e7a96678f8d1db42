#include "cli/memory_plan.h"

#include <random>

#include <gtest/gtest.h>

#include "base/physical_memory.h"

namespace tensorfold::cli {
namespace {

constexpr uint64_t kGibibyte = 1ull << 30;

Machine gpu(uint64_t memory) { return {"a GPU", memory, 2, true}; }
Machine computer(uint64_t memory) { return {"the CPU", memory, 4, false}; }

TEST(MemoryPlans, LeaveTheRestOfTheMachineItsShare) {
  EXPECT_EQ(usable_memory(gpu(141'000'000'000)), 126'900'000'000U);
  EXPECT_EQ(usable_memory(gpu(24 * kGibibyte)), 20 * kGibibyte);
  EXPECT_EQ(usable_memory(gpu(2 * kGibibyte)), kGibibyte);
  EXPECT_EQ(usable_memory(computer(64'000'000'000)), 44'800'000'000U);
}

TEST(MemoryPlans, CountTheKeptStateAndTheWindowBesideTheConversations) {
  const MemoryPlan plan = plan_memory({16'000'000'000, 65'536, 154'000'000}, gpu(141'000'000'000), 262'144, 4);
  EXPECT_EQ(plan.caches, (4 * 262'144ULL + 256) * 65'536 + 5 * 154'000'000ULL);
  EXPECT_TRUE(plan.fits);
}

TEST(MemoryPlans, WhatTheyOfferFitsAndALittleMoreDoesNot) {
  std::mt19937_64 random(11);
  const auto below = [&](uint64_t limit) { return random() % limit; };
  int refused = 0;
  for (int i = 0; i < 2'000; ++i) {
    const MemoryNeeds needs{below(100'000'000'000), 1 + below(500'000), below(1'000'000'000)};
    const auto machine = [&, is_gpu = below(2) == 0](uint64_t memory) {
      return is_gpu ? gpu(memory) : computer(memory);
    };
    const uint64_t memory = below(200'000'000'000);
    const auto context = static_cast<int32_t>(256 + below(300'000));
    const auto parallel = static_cast<int32_t>(1 + below(32));
    const MemoryPlan plan = plan_memory(needs, machine(memory), context, parallel);
    if (plan.fits) continue;
    ++refused;
    if (plan.most_context > 0) {
      EXPECT_TRUE(plan_memory(needs, machine(memory), plan.most_context, parallel).fits);
    }
    EXPECT_FALSE(plan_memory(needs, machine(memory), plan.most_context + 256, parallel).fits);
    if (plan.most_parallel > 0) {
      EXPECT_TRUE(plan_memory(needs, machine(memory), context, plan.most_parallel).fits);
    }
    EXPECT_FALSE(plan_memory(needs, machine(memory), context, plan.most_parallel + 1).fits);
    EXPECT_TRUE(plan_memory(needs, machine(plan.smallest_memory), context, parallel).fits);
    EXPECT_FALSE(plan_memory(needs, machine(plan.smallest_memory - 12), context, parallel).fits);
  }
  EXPECT_GT(refused, 500);
}

TEST(PhysicalMemory, IsAPlausibleAmount) {
  EXPECT_GT(physical_memory(), 64ULL << 20);
  EXPECT_LT(physical_memory(), 1ULL << 50);
}

}  // namespace
}  // namespace tensorfold::cli
