#include "cli/memory_plan.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/physical_memory.h"
#include "engine/memory_plan.h"

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

TEST(MemoryPlans, CountTheKeptStatesAndTheWindowBesideTheConversations) {
  const MemoryPlan plan = plan_memory({16'000'000'000, 65'536, 154'000'000}, gpu(141'000'000'000), 262'144, 4);
  EXPECT_EQ(plan.caches, (4 * 262'144ULL + 192) * 65'536 + (4 + 64) * 154'000'000ULL);
  const MemoryPlan small = plan_memory({0, 1'000, 10'000'000}, gpu(141'000'000'000), 8'192, 1);
  EXPECT_EQ(small.caches, (8'192 + 192) * 1'000 + (2 + 1) * 10'000'000ULL);
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

TEST(MemoryPlans, AreWhatTheEngineGrants) {
  std::mt19937_64 random(12);
  for (int i = 0; i < 500; ++i) {
    const MemoryNeeds needs{0, 1 + random() % 100'000, 1 + random() % 100'000'000};
    engine::EngineOptions options;
    options.context = static_cast<int32_t>(128 + random() % 100'000);
    options.parallel = static_cast<int32_t>(1 + random() % 2);
    const engine::CacheCosts costs{.page_bytes = static_cast<int64_t>(needs.token) * options.page_tokens,
                                   .state_bytes = static_cast<int64_t>(needs.state)};
    const uint64_t least = engine::least_budget(options, costs, 1);
    EXPECT_EQ(cache_bytes(needs, options.context, 1), least);
    for (const uint64_t budget : {least, least + random() % 1'000'000'000})
      EXPECT_NO_THROW(engine::plan_memory(options, costs, 1 << 20, 512, budget));
    EXPECT_THROW(engine::plan_memory(options, costs, 1 << 20, 512, least - 1), Error);
  }
}

TEST(MemoryPlans, TakeNoSizeThatBytesCannotCount) {
  EXPECT_TRUE(is_memory(0.0));
  EXPECT_TRUE(is_memory(0.1));
  for (const double size : {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 1e300})
    EXPECT_FALSE(is_memory(size)) << size;
}

TEST(PhysicalMemory, IsAPlausibleAmount) {
  EXPECT_GT(physical_memory(), 64ULL << 20);
  EXPECT_LT(physical_memory(), 1ULL << 50);
}

}  // namespace
}  // namespace tensorfold::cli
