// The pure parts of the engine: references, prompt order, decode share, memory, acceptance of windows.
#include <algorithm>

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/memory_plan.h"
#include "engine/prompt_schedule.h"
#include "engine/reference_pool.h"
#include "engine/sequence.h"
#include "engine/token_counts.h"

namespace tensorfold::engine {
namespace {

TEST(ReferencePool, CountsReferencesAndRefusesMisuse) {
  ReferencePool pool(2);
  const int32_t a = pool.allocate().value();
  const int32_t b = pool.allocate().value();
  EXPECT_NE(a, b);
  EXPECT_FALSE(pool.allocate().has_value());
  pool.retain(a);
  EXPECT_FALSE(pool.release(a));
  EXPECT_TRUE(pool.release(a));
  EXPECT_EQ(pool.allocate(), a);
  EXPECT_TRUE(pool.release(b));
  EXPECT_THROW(pool.release(b), Error);
  EXPECT_THROW(pool.retain(b), Error);
  EXPECT_THROW((void)pool.references(7), Error);
}

TEST(PromptOrder, ShortestFirstForegroundFirstWithinAFairnessBound) {
  std::vector<PromptWork> work = {{.rows_left = 900, .arrival = 1},
                                  {.rows_left = 100, .arrival = 2},
                                  {.rows_left = 10, .background = true, .arrival = 3},
                                  {.rows_left = 100, .arrival = 4}};
  EXPECT_EQ(prompt_order(work), (std::vector<size_t>{1, 3, 0, 2}));
  work[0].passed_over = most_passed_over;
  EXPECT_EQ(prompt_order(work), (std::vector<size_t>{0, 1, 3, 2}));
  work[2].passed_over = most_passed_over;
  EXPECT_EQ(prompt_order(work), (std::vector<size_t>{0, 2, 1, 3}));
}

TEST(DecodeShare, LeavesRunningRepliesTheirShare) {
  DecodeShare share(0.25);
  EXPECT_TRUE(share.prompts_may_run());
  share.prompt_round(1.0);  // 0.25 s belong to the replies
  EXPECT_FALSE(share.prompts_may_run());
  share.decode_round(0.2);
  EXPECT_FALSE(share.prompts_may_run());
  share.decode_round(0.1);
  EXPECT_TRUE(share.prompts_may_run());
  share.prompt_round(1.0);
  for (int i = 0; i < 32; ++i) share.decode_round(0.0);
  EXPECT_TRUE(share.prompts_may_run());
  DecodeShare none(0.0);
  none.prompt_round(5.0);
  EXPECT_TRUE(none.prompts_may_run());
}

TEST(MemoryPlan, FitsTheBudgetOrSaysWhatWould) {
  EngineOptions options;
  options.parallel = 2;
  const CacheCosts costs{.page_bytes = 1 << 20, .state_bytes = 8 << 20};
  const uint64_t budget = uint64_t{1} << 30;
  const MemoryPlan plan = plan_memory(options, costs, 262144, 512, budget);
  const auto used =
      static_cast<uint64_t>(plan.cache.pages) * (1 << 20) + static_cast<uint64_t>(plan.cache.state_slots) * (8 << 20);
  EXPECT_LE(used, budget);
  EXPECT_GE(plan.context, 10000);
  EXPECT_GE(plan.cache.pages * options.page_tokens, 2 * plan.context);
  options.context = 1 << 20;
  EXPECT_THROW(plan_memory(options, costs, 262144, 512, budget), Error);
  options.context = 0;
  EXPECT_EQ(plan_memory(options, costs, 2048, 512, budget).context, 2048);
  EXPECT_THROW(plan_memory(options, costs, 2048, 512, 1 << 20), Error);
}

TEST(MemoryPlan, AContextOfZeroLeavesRoomToKeepAPromptBesideTheOneThatRuns) {
  EngineOptions options;
  options.parallel = 1;
  options.context = 0;
  const CacheCosts costs{.page_bytes = 1 << 20, .state_bytes = 8 << 20};
  const uint64_t budget = uint64_t{1} << 30;
  const MemoryPlan plan = plan_memory(options, costs, 262144, 512, budget);
  EXPECT_LT(plan.context, 262144) << "memory is what bounds it";
  EXPECT_GE(plan.cache.pages * options.page_tokens, 2 * plan.context);
  // As much again as it offers still fits, twice more does not.
  options.context = plan.context + 1024;
  EXPECT_NO_THROW(plan_memory(options, costs, 262144, 512, budget));
  options.context = 3 * plan.context;
  EXPECT_THROW(plan_memory(options, costs, 262144, 512, budget), Error);
}

TEST(MemoryPlan, CheckpointSlotsAreGrantedAsAskedAndTakenFromTheSameMemory) {
  EngineOptions options;
  options.parallel = 2;
  const CacheCosts costs{.page_bytes = 1 << 20, .state_bytes = 8 << 20};
  const uint64_t budget = uint64_t{1} << 30;
  options.kept_states = 3;
  const MemoryPlan few = plan_memory(options, costs, 262144, 512, budget);
  options.kept_states = 100;
  const MemoryPlan many = plan_memory(options, costs, 262144, 512, budget);
  EXPECT_EQ(few.kept_states, 3);
  EXPECT_EQ(many.kept_states, 100);
  EXPECT_EQ(many.cache.state_slots - few.cache.state_slots, 97);
  EXPECT_LT(many.context, few.context);
  EXPECT_LE(
      static_cast<uint64_t>(many.cache.pages) * (1 << 20) + static_cast<uint64_t>(many.cache.state_slots) * (8 << 20),
      budget);
  options.kept_states = 1000;
  EXPECT_THROW(plan_memory(options, costs, 262144, 512, budget), Error);
}

TEST(TokenCounts, AddAPathWithoutCommittingToIt) {
  TokenCounts counts;
  counts.add_prompt(std::vector<int32_t>{5, 5, 9});
  counts.add_reply(9);
  const auto find = [](const std::vector<backend::TokenCount>& list, int32_t token) {
    const auto at = std::find_if(list.begin(), list.end(), [&](const auto& c) { return c.token == token; });
    return at == list.end() ? std::pair(0, 0) : std::pair(at->in_prompt, at->in_reply);
  };
  const auto along = counts.along(std::vector<int32_t>{7, 5, 7});
  EXPECT_EQ(find(along, 5), std::pair(2, 1));
  EXPECT_EQ(find(along, 9), std::pair(1, 1));
  EXPECT_EQ(find(along, 7), std::pair(0, 2));
  EXPECT_EQ(along.size(), 3U);
  EXPECT_EQ(find(counts.along({}), 7), std::pair(0, 0));
}

class AcceptWindow : public ::testing::Test {
 protected:
  AcceptWindow() {
    sequence.request.prompt = {1, 2};
    sequence.request.max_tokens = 10;
    sequence.tokens = {1, 2};
    sequence.lane.committed = 1;
    window.sequence = &sequence;
    window.draws = true;
    window.decode = true;
  }
  Acceptance accept(const std::vector<int32_t>& draws) {
    std::vector<backend::Drawn> drawn(draws.size());
    for (size_t i = 0; i < draws.size(); ++i) drawn[i].token = draws[i];
    std::vector<TokenLogprobs> logprobs;
    return accept_window(window, drawn, logprobs);
  }
  Sequence sequence;
  SequenceWindow window;
};

TEST_F(AcceptWindow, KeepsTheMatchingPrefixOfAChainAndTheFirstMiss) {
  window.tokens = {2, 10, 11, 12};
  const Acceptance acceptance = accept({10, 11, 99, 13});
  EXPECT_EQ(acceptance.path, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(sequence.tokens, (std::vector<int32_t>{1, 2, 10, 11, 99}));
  EXPECT_EQ(acceptance.emitted, 3);
  EXPECT_FALSE(acceptance.finished);
}

TEST_F(AcceptWindow, FollowsTheMatchingBranchOfATree) {
  window.tokens = {2, 20, 10, 30, 11};
  window.parents = {-1, 0, 0, 1, 2};
  const Acceptance acceptance = accept({10, 30, 11, 31, 12});
  EXPECT_EQ(acceptance.path, (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(sequence.tokens, (std::vector<int32_t>{1, 2, 10, 11, 12}));
}

TEST_F(AcceptWindow, StopsAtAnEndTokenInsideTheDrafts) {
  window.tokens = {2, 10, 11};
  sequence.request.end_tokens = {10};
  const Acceptance acceptance = accept({10, 11, 12});
  EXPECT_EQ(acceptance.path, (std::vector<int32_t>{0}));
  EXPECT_EQ(acceptance.finished, FinishReason::stop);
  EXPECT_EQ(sequence.tokens.back(), 10);
}

TEST_F(AcceptWindow, StopsAtTheTokenLimit) {
  window.tokens = {2, 10, 11};
  sequence.request.max_tokens = 2;
  const Acceptance acceptance = accept({10, 11, 12});
  EXPECT_EQ(acceptance.path, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(acceptance.finished, FinishReason::length);
  EXPECT_EQ(sequence.reply_size(), 2);
}

TEST_F(AcceptWindow, KeepsAllRowsOfAPromptChunk) {
  sequence.tokens = {1, 2, 3, 4};
  sequence.request.prompt = sequence.tokens;
  window.decode = false;
  window.tokens = {2, 3, 4};
  window.first_drawn = 2;
  const Acceptance acceptance = accept({77});
  EXPECT_EQ(acceptance.path, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(sequence.tokens.back(), 77);
  window.draws = false;
  EXPECT_EQ(accept({}).emitted, 0);
}

}  // namespace
}  // namespace tensorfold::engine
