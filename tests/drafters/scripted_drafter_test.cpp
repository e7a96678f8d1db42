#include "drafters/scripted_drafter.h"

#include <numeric>

#include <gtest/gtest.h>

namespace tensorfold::drafters {
namespace {

TEST(ScriptedDrafter, ByPositionIsRightOrWrongAtAPositionHoweverItIsAsked) {
  std::vector<int32_t> prompt = {1, 2, 3};
  std::vector<int32_t> reply(400);
  std::iota(reply.begin(), reply.end(), 100);
  ScriptedDrafter drafter({.acceptance = 0.5, .vocabulary = 1000, .by_position = true});
  drafter.learn(prompt, reply);
  drafter.open(0, prompt, 0);
  const auto right_from = [&](size_t known, int32_t most) {
    std::vector<int32_t> context = prompt;
    context.insert(context.end(), reply.begin(), reply.begin() + static_cast<std::ptrdiff_t>(known));
    const DraftRequest request{.lane = 0, .context = context, .most = most, .sampling = {}, .pages = {}};
    Draft draft;
    drafter.propose({&request, 1}, {&draft, 1});
    size_t right = 0;
    while (right < draft.tokens.size() && draft.tokens[right] == reply[known + right]) ++right;
    return right;
  };
  size_t landed = 0;
  for (size_t known = 0; known + 16 < reply.size(); ++known) {
    const size_t right = right_from(known, 16);
    EXPECT_EQ(right_from(known, 16), right) << known;
    EXPECT_EQ(right_from(known, 1), std::min<size_t>(right, 1)) << known;
    if (right > 0) {
      EXPECT_EQ(right_from(known + 1, 15), right - 1) << known;
    }
    landed += right > 0 ? 1 : 0;
  }
  EXPECT_GT(landed, 150U);
  EXPECT_LT(landed, 234U);
}

}  // namespace
}  // namespace tensorfold::drafters
