#include "server/reply_constraint.h"

#include <algorithm>
#include <functional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared_data.h"

namespace tensorfold::server {
namespace {

using ::testing::ElementsAre;

/// Feeds tokens of the model's own choice wherever the constraint forces none; what was committed comes back.
std::vector<int32_t> run(engine::Constraint& constraint, const std::vector<int32_t>& wishes, size_t length) {
  std::vector<int32_t> reply;
  size_t next = 0;
  while (reply.size() < length) {
    const int32_t forced = constraint.forced({});
    const int32_t token = forced >= 0 ? forced : next < wishes.size() ? wishes[next++] : 99;
    constraint.commit(std::span(&token, 1));
    reply.push_back(token);
  }
  return reply;
}

/// The same, with every prefix of the reply walked as an uncommitted path first.
void expect_paths_agree(engine::Constraint& fresh, const std::vector<int32_t>& reply) {
  for (size_t i = 0; i < reply.size(); ++i) {
    const int32_t forced = fresh.forced(std::span(reply).first(i));
    EXPECT_TRUE(forced < 0 || forced == reply[i]) << i;
  }
  EXPECT_EQ(fresh.accepts({}, reply), reply.size());
}

TEST(ThinkingBudget, ClosesTheBlockExactlyAtTheCount) {
  const auto constraint = thinking_budget(3, {10, 11, 12}, 11);
  EXPECT_THAT(run(*constraint, {1, 2, 3, 4, 5}, 8), ElementsAre(1, 2, 10, 11, 12, 3, 4, 5));
  const auto fresh = thinking_budget(3, {10, 11, 12}, 11);
  expect_paths_agree(*fresh, {1, 2, 10, 11, 12, 3, 4, 5});
}

TEST(ThinkingBudget, LeavesAReplyAloneThatClosedItself) {
  const auto constraint = thinking_budget(4, {10, 11, 12}, 11);
  EXPECT_THAT(run(*constraint, {1, 11, 3, 4, 5, 6, 7}, 7), ElementsAre(1, 11, 3, 4, 5, 6, 7));
}

TEST(ThinkingBudget, CutsDraftsThatGoOnThinking) {
  const auto constraint = thinking_budget(3, {10, 11}, 11);
  EXPECT_EQ(constraint->accepts({}, std::vector<int32_t>{1, 2, 3, 4}), 2U);
  EXPECT_EQ(constraint->accepts(std::vector<int32_t>{1}, std::vector<int32_t>{2, 10, 11, 9}), 4U);
}

TEST(CallGate, WritesTheOpeningAndOneOfTheNames) {
  const auto tokenizer = text::Tokenizer::load(testing::project_path("models/demo").string());
  const TokensByBytes tokens(tokenizer);
  CallGate gate;
  gate.opening = tokenizer.encode("<tool_call>\n<function=");
  gate.names = {"get_weather>", "get_time>", "add>"};
  const auto constraint = call_gate(gate, tokens);
  for (size_t i = 0; i < gate.opening.size(); ++i) {
    const int32_t forced = constraint->forced({});
    EXPECT_EQ(forced, gate.opening[i]);
    constraint->commit(std::span(&forced, 1));
  }
  // From here on any path through the masks must spell one of the names, and every name must be reachable.
  std::set<std::string> reached;
  const std::function<void(std::vector<int32_t>)> walk = [&](std::vector<int32_t> path) {
    std::vector<uint32_t> bits(tokenizer.vocabulary_size() / 32 + 1, ~0U);
    if (!constraint->mask(path, bits)) {
      reached.insert(tokenizer.decode(path));
      return;
    }
    int allowed = 0;
    for (int32_t token = 0; token < static_cast<int32_t>(tokenizer.vocabulary_size()); ++token) {
      if ((bits[static_cast<size_t>(token) / 32] >> (token % 32) & 1U) == 0) continue;
      ++allowed;
      EXPECT_EQ(constraint->accepts(path, std::span(&token, 1)), 1U);
      auto longer = path;
      longer.push_back(token);
      if (longer.size() < 14 && reached.size() < 200) walk(longer);
    }
    EXPECT_GT(allowed, 0) << "a mask that allows nothing";
  };
  walk({});
  for (const char* name : {"get_weather>", "get_time>", "add>"}) {
    EXPECT_TRUE(std::any_of(reached.begin(), reached.end(), [&](const auto& one) { return one.rfind(name, 0) == 0; }));
  }
  for (const std::string& one : reached) {
    EXPECT_TRUE(one.rfind("get_weather>", 0) == 0 || one.rfind("get_time>", 0) == 0 || one.rfind("add>", 0) == 0)
        << one;
  }
}

TEST(CallGate, WaitsForTheEndOfThinking) {
  const auto tokenizer = text::Tokenizer::load(testing::project_path("models/demo").string());
  const TokensByBytes tokens(tokenizer);
  CallGate gate;
  gate.think_end = 500;
  gate.after_thinking = {501};
  gate.opening = {600, 601};
  gate.names = {"add>"};
  const auto constraint = call_gate(gate, tokens);
  EXPECT_THAT(run(*constraint, {1, 2, 500}, 6), ElementsAre(1, 2, 500, 501, 600, 601));
}

}  // namespace
}  // namespace tensorfold::server
