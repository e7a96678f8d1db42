// The real drafters inside the engine: replies do not change, alone, together, and over turns that resume.
#include "drafters/drafter_set.h"
#include "engine_fixture.h"

namespace tensorfold::engine {
namespace {

using namespace testing;  // NOLINT: the fixture of this folder

std::unique_ptr<Engine> start_with(const drafters::DrafterChoice& choice, const EngineOptions& options) {
  return start_engine(*demo().backend, demo().model(), options,
                      drafters::make_drafters(*demo().backend, demo().model(), choice));
}

/// Returns how many tokens `drafter` drafted, and how many of them stand in replies.
std::pair<int32_t, int32_t> expect_recorded_replies(Engine& engine, const char* drafter) {
  const auto cases = golden_cases();
  std::vector<Reply> replies(cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    Request request = make_request(cases[i].prompt, 160);
    replies[i].attach(request);
    engine.submit(std::move(request));
  }
  int32_t drafted = 0;
  int32_t accepted = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const ReplyStatistics& statistics = replies[i].wait().statistics;
    EXPECT_EQ(replies[i].tokens(), cases[i].reply) << i;
    if (const auto found = statistics.by_drafter.find(drafter); found != statistics.by_drafter.end()) {
      drafted += found->second.first;
      accepted += found->second.second;
    }
  }
  return {drafted, accepted};
}

TEST(Drafters, OwnHeadAndCopiesGiveTheRecordedReplies) {
  EngineOptions options = small_options();
  // Whether drafts pay depends on the machine's mood; replies do not.
  expect_recorded_replies(*start_with({}, options), "mtp");
  options.fixed_drafts = 3;
  drafters::DrafterChoice head_only;
  head_only.copies = false;
  const auto [drafted, accepted] = expect_recorded_replies(*start_with(head_only, options), "mtp");
  EXPECT_GT(drafted, 0);
  EXPECT_GT(accepted, drafted / 4);
}

TEST(Drafters, BlockDrafterGivesTheRecordedReplies) {
  EngineOptions options = small_options();
  options.fixed_drafts = 7;
  drafters::DrafterChoice choice;
  choice.copies = false;
  choice.block_drafter = tensorfold::testing::project_path("models/demo-dflash2");
  const auto engine = start_with(choice, options);
  const auto cases = golden_cases();
  int32_t drafted = 0;
  int32_t accepted = 0;
  for (const GoldenCase& golden : cases) {
    Request request = make_request(golden.prompt, 160);
    Reply reply;
    reply.attach(request);
    engine->submit(std::move(request));
    drafted += reply.wait().statistics.drafted;
    accepted += reply.wait().statistics.accepted;
    EXPECT_EQ(reply.tokens(), golden.reply);
  }
  EXPECT_GT(accepted, drafted / 3);
}

TEST(Drafters, SampledTurnsThatResumeReplyAsSerialFreshOnes) {
  const auto cases = golden_cases();
  EngineOptions options = small_options();
  options.fixed_drafts = 4;
  drafters::DrafterChoice choice;
  choice.copies = false;
  const auto engine = start_with(choice, options);
  std::vector<int32_t> prompt;
  for (size_t turn = 0; turn < 5; ++turn) {
    prompt.insert(prompt.end(), cases[turn].prompt.begin(), cases[turn].prompt.end());
    Request request = make_request(prompt, 32, 0.8);
    request.end_tokens.clear();
    const std::vector<int32_t> serial = serial_reply(request);
    Reply reply;
    reply.attach(request);
    engine->submit(std::move(request));
    const ReplyStatistics& statistics = reply.wait().statistics;
    EXPECT_EQ(reply.tokens(), serial) << turn;
    EXPECT_EQ(statistics.cached_tokens > 0, turn > 0);
    EXPECT_GT(statistics.accepted, 0) << turn;
    prompt.insert(prompt.end(), reply.tokens().begin(), reply.tokens().end());
  }
}

}  // namespace
}  // namespace tensorfold::engine
