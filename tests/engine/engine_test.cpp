// The engine on the demonstration model: recorded replies, and the same bytes whatever runs beside or drafts ahead.
#include "engine/engine.h"

#include <array>
#include <future>

#include "base/error.h"
#include "engine/cache_pool.h"
#include "engine_fixture.h"

namespace tensorfold::engine {
namespace {

using namespace testing;  // NOLINT: the fixture of this folder

TEST(Engine, GreedyRepliesAreTheRecordedOnes) {
  const auto engine = start(small_options());
  for (const GoldenCase& golden : golden_cases()) {
    Request request = make_request(golden.prompt, 160);
    request.draft = false;
    EXPECT_EQ(generate(*engine, std::move(request)), golden.reply);
  }
}

TEST(Engine, RepliesTogetherEqualRepliesAlone) {
  const auto cases = golden_cases();
  std::vector<std::vector<int32_t>> alone;
  for (size_t i = 0; i < 6; ++i) {
    alone.push_back(serial_reply(make_request(cases[i].prompt, 60, i % 2 == 0 ? 0.0 : 1.0)));
  }
  const auto engine = start(small_options());
  std::vector<Reply> replies(6);
  for (size_t i = 0; i < replies.size(); ++i) {
    Request request = make_request(cases[i].prompt, 60, i % 2 == 0 ? 0.0 : 1.0);
    replies[i].attach(request);
    engine->submit(std::move(request));
  }
  for (size_t i = 0; i < replies.size(); ++i) {
    replies[i].wait();
    EXPECT_EQ(replies[i].tokens(), alone[i]) << i;
    EXPECT_EQ(replies[i].finishes(), 1);
  }
}

struct Script {
  double acceptance;
  int32_t branches;
  int32_t drafts;
};

class ScriptedDrafts : public ::testing::TestWithParam<Script> {};

TEST_P(ScriptedDrafts, ChangeNoByte) {
  const Script& script = GetParam();
  const auto cases = golden_cases();
  auto drafter = std::make_unique<drafters::ScriptedDrafter>(drafters::ScriptOptions{
      .acceptance = script.acceptance, .branches = script.branches, .vocabulary = 4096, .seed = 3});
  std::vector<std::vector<int32_t>> serial;
  std::vector<Request> requests;
  for (const size_t i : {0, 4, 9, 13}) {
    Request request = make_request(cases[i].prompt, 48, i % 2 == 0 ? 0.0 : 0.8);
    if (i == 13) {
      request.repetition_penalty = 1.2F;
      request.presence_penalty = 0.3F;
      request.frequency_penalty = 0.1F;
    }
    serial.push_back(serial_reply(request));
    drafter->learn(request.prompt, serial.back());
    requests.push_back(std::move(request));
  }
  EngineOptions options = small_options();
  options.fixed_drafts = script.drafts;
  const auto engine = start(options, std::move(drafter));
  std::vector<Reply> replies(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    replies[i].attach(requests[i]);
    engine->submit(std::move(requests[i]));
  }
  for (size_t i = 0; i < replies.size(); ++i) {
    const ReplyStatistics& statistics = replies[i].wait().statistics;
    EXPECT_EQ(replies[i].tokens(), serial[i]) << i;
    EXPECT_GT(statistics.drafted, 0);
    if (script.acceptance == 0.0) {
      // A wrong draft may be right by chance, but not often.
      EXPECT_LE(statistics.accepted, 2);
    } else if (script.acceptance == 1.0) {
      EXPECT_LT(statistics.rounds, statistics.reply_tokens / 2);
    }
  }
  EXPECT_EQ(engine->status().drafts_off_reason, "");
}

INSTANTIATE_TEST_SUITE_P(Acceptance, ScriptedDrafts,
                         ::testing::Values(Script{0.0, 1, 3}, Script{0.5, 1, 5}, Script{1.0, 1, 7}, Script{0.5, 2, 8},
                                           Script{1.0, 3, 15}, Script{0.0, 3, 6}));

TEST(Engine, EndsAtTheTokenLimitAtAnEndTokenAndWhenTheCallerSaysSo) {
  const GoldenCase golden = golden_cases()[0];
  const auto engine = start(small_options());
  {
    Request request = make_request(golden.prompt, 5);
    Reply reply;
    reply.attach(request);
    engine->submit(std::move(request));
    EXPECT_EQ(reply.wait().reason, FinishReason::length);
    EXPECT_EQ(reply.tokens(), std::vector<int32_t>(golden.reply.begin(), golden.reply.begin() + 5));
  }
  {
    Request request = make_request(golden.prompt, 60);
    request.end_tokens = {golden.reply[3]};
    Reply reply;
    reply.attach(request);
    engine->submit(std::move(request));
    EXPECT_EQ(reply.wait().reason, FinishReason::stop);
    EXPECT_EQ(reply.tokens().back(), golden.reply[3]);
    EXPECT_LE(reply.tokens().size(), 4U);
  }
  {
    Request request = make_request(golden.prompt, 60);
    int calls = 0;
    request.on_tokens = [&](std::span<const int32_t>, std::span<const TokenLogprobs>) { return ++calls < 3; };
    Reply reply;
    reply.attach(request);
    engine->submit(std::move(request));
    EXPECT_EQ(reply.wait().reason, FinishReason::stop);
    EXPECT_EQ(reply.tokens().size(), 3U);
  }
}

TEST(Engine, ACancelledReplyFreesItsLane) {
  const GoldenCase golden = golden_cases()[1];
  EngineOptions options = small_options();
  options.parallel = 1;
  const auto engine = start(options);
  Request endless = make_request(golden.prompt, 800);
  endless.end_tokens.clear();
  std::shared_ptr<Ticket> ticket;
  Reply first;
  first.attach(endless);
  Request next = make_request(golden.prompt, 4);
  Reply second;
  second.attach(next);
  ticket = engine->submit(std::move(endless));
  engine->submit(std::move(next));
  ticket->cancel();
  EXPECT_EQ(first.wait().reason, FinishReason::cancelled);
  EXPECT_EQ(second.wait().reason, FinishReason::length);
  EXPECT_LT(first.tokens().size(), 800U);
}

TEST(Engine, WhoWaitsTakesTheLaneOfWhoLeavesInTheNextRound) {
  const auto cases = golden_cases();
  EngineOptions options = small_options();
  options.parallel = 2;
  options.decode_share = 0.0;  // a prompt waits for nobody
  const auto engine = start(options);
  std::promise<std::shared_ptr<Ticket>> everybody_is_in;
  // All callbacks come from the engine's thread; the reply that stays gets a token in every round.
  int leaver_tokens = 0;
  int stayer_tokens = 0;
  int at_leaving = -1;
  int at_entering = -1;
  Reply leaver;
  Reply stayer;
  Reply entering;
  Request leaves = make_request(cases[0].prompt, 400);
  leaves.end_tokens.clear();
  leaves.on_tokens = [&](std::span<const int32_t> tokens, std::span<const TokenLogprobs>) {
    leaver_tokens += static_cast<int>(tokens.size());
    if (leaver_tokens == 5) {
      everybody_is_in.get_future().get()->cancel();
      at_leaving = stayer_tokens;
    }
    return true;
  };
  Request stays = make_request(cases[1].prompt, 40);
  stays.end_tokens.clear();
  stays.on_tokens = [&](std::span<const int32_t> tokens, std::span<const TokenLogprobs>) {
    stayer_tokens += static_cast<int>(tokens.size());
    return true;
  };
  Request enters = make_request(cases[2].prompt, 4);
  enters.on_tokens = [&](std::span<const int32_t>, std::span<const TokenLogprobs>) {
    if (at_entering < 0) at_entering = stayer_tokens;
    return true;
  };
  leaver.attach(leaves);
  stayer.attach(stays);
  entering.attach(enters);
  const auto ticket = engine->submit(std::move(leaves));
  engine->submit(std::move(stays));
  engine->submit(std::move(enters));
  everybody_is_in.set_value(ticket);
  EXPECT_EQ(leaver.wait().reason, FinishReason::cancelled);
  entering.wait();
  stayer.wait();
  EXPECT_EQ(leaver_tokens, 5);
  ASSERT_GE(at_leaving, 1) << "both ran before";
  // What is left of the round of leaving, and the one round that already reads the next prompt.
  EXPECT_LE(at_entering - at_leaving, 2);
}

TEST(Engine, ACheckpointSlotIsAStateThatStays) {
  const auto cases = golden_cases();
  // Three conversations of two turns: with room for the states of all, every second turn resumes; with one slot, not.
  const auto resumed = [&](int32_t slots) {
    EngineOptions options = small_options();
    options.parallel = 1;
    options.kept_states = slots;
    options.host_bytes = 0;
    const auto engine = start(options);
    std::array<std::vector<int32_t>, 3> said;
    int32_t found = 0;
    for (int turn = 0; turn < 2; ++turn) {
      for (size_t i = 0; i < said.size(); ++i) {
        if (turn == 0) said[i] = cases[i].prompt;
        Request request = make_request(said[i], 6);
        Reply reply;
        reply.attach(request);
        engine->submit(std::move(request));
        found += turn > 0 && reply.wait().statistics.cached_tokens > 0 ? 1 : 0;
        reply.wait();
        said[i].insert(said[i].end(), reply.tokens().begin(), reply.tokens().end());
        said[i].insert(said[i].end(), {7, 8, 9});
      }
    }
    return found;
  };
  EXPECT_EQ(resumed(16), 3);
  EXPECT_LT(resumed(1), 3);
}

TEST(Engine, RefusesWhatCanNeverRun) {
  const auto engine = start(small_options());
  EXPECT_THROW(engine->submit(make_request({}, 4)), Error);
  EXPECT_THROW(engine->submit(make_request({1, 4096}, 4)), Error);
  EXPECT_THROW(engine->submit(make_request({1, -1}, 4)), Error);
  EXPECT_THROW(engine->submit(make_request({1, 2}, 0)), Error);
  EXPECT_THROW(engine->submit(make_request({1, 2}, 1023)), Error);
  EXPECT_NO_THROW(engine->submit(make_request({1, 2}, 1)));
}

TEST(Engine, StoppingEndsEveryReplyOnce) {
  const auto cases = golden_cases();
  auto engine = start(small_options());
  std::vector<Reply> replies(6);
  for (size_t i = 0; i < replies.size(); ++i) {
    Request request = make_request(cases[i].prompt, 500);
    request.end_tokens.clear();
    replies[i].attach(request);
    engine->submit(std::move(request));
  }
  engine->stop();
  for (Reply& reply : replies) {
    EXPECT_EQ(reply.wait().reason, FinishReason::cancelled);
    EXPECT_EQ(reply.finishes(), 1);
  }
  EXPECT_THROW(engine->submit(make_request({1}, 1)), Error);
}

TEST(Engine, SequencesThatGiveUpTheirPlaceReplyTheSame) {
  const auto cases = golden_cases();
  std::vector<std::vector<int32_t>> alone;
  for (size_t i = 0; i < 4; ++i) {
    Request request = make_request(cases[i].prompt, 150, 0.9);
    request.end_tokens.clear();
    alone.push_back(serial_reply(request));
  }
  EngineOptions options = small_options();
  options.context = 384;
  options.page_tokens = 16;
  // Memory for little more than one full context: four replies cannot all stay.
  const auto cache = demo().model().cache_layout();
  const CacheCosts costs = measure_cache(*demo().backend, cache, {}, options.page_tokens);
  options.memory_budget = static_cast<uint64_t>(8 * costs.state_bytes * 2 + 30 * costs.page_bytes);
  const auto engine = start(options);
  std::vector<Reply> replies(4);
  for (size_t i = 0; i < replies.size(); ++i) {
    Request request = make_request(cases[i].prompt, 150, 0.9);
    request.end_tokens.clear();
    if (i == 0) request.priority = Priority::background;
    replies[i].attach(request);
    engine->submit(std::move(request));
  }
  for (size_t i = 0; i < replies.size(); ++i) {
    EXPECT_EQ(replies[i].wait().reason, FinishReason::length);
    EXPECT_EQ(replies[i].tokens(), alone[i]) << i;
  }
}

TEST(Engine, LogprobsComeWithEveryToken) {
  const GoldenCase golden = golden_cases()[2];
  const auto engine = start(small_options());
  Request request = make_request(golden.prompt, 10);
  request.top_logprobs = 3;
  Reply reply;
  reply.attach(request);
  engine->submit(std::move(request));
  reply.wait();
  ASSERT_EQ(reply.logprobs().size(), reply.tokens().size());
  for (size_t i = 0; i < reply.tokens().size(); ++i) {
    const TokenLogprobs& logprobs = reply.logprobs()[i];
    EXPECT_EQ(logprobs.token, reply.tokens()[i]);
    ASSERT_EQ(logprobs.top.size(), 3U);
    EXPECT_EQ(logprobs.top[0].first, reply.tokens()[i]);  // greedy
    EXPECT_EQ(logprobs.top[0].second, logprobs.logprob);
    EXPECT_LE(logprobs.logprob, 0.0F);
    EXPECT_GE(logprobs.top[0].second, logprobs.top[1].second);
  }
}

}  // namespace
}  // namespace tensorfold::engine
