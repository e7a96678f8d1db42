// Who goes first, and how much of the time is whose, when several requests share an engine.
#include <algorithm>
#include <atomic>
#include <thread>

#include "engine_fixture.h"

namespace tensorfold::engine {
namespace {

using namespace testing;  // NOLINT: the fixture of this folder

/// The order in which replies ended.
class Endings {
 public:
  void attach(Request& request, int name) {
    auto finish = request.on_finish;
    request.on_finish = [this, name, finish](const ReplyResult& result) {
      {
        const std::lock_guard lock(mutex_);
        order_.push_back(name);
      }
      finish(result);
    };
  }
  [[nodiscard]] std::vector<int> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }

 private:
  std::mutex mutex_;
  std::vector<int> order_;
};

std::vector<int32_t> tokens_of(int32_t count, int32_t seed) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(300 + (i * 37 + seed * 101) % 3000);
  return tokens;
}

Request endless(const std::vector<int32_t>& prompt, int32_t tokens) {
  Request request = make_request(prompt, tokens);
  request.end_tokens.clear();
  return request;
}

TEST(Sharing, AForegroundRequestTakesTheLaneOfABackgroundOne) {
  EngineOptions options = small_options();
  options.parallel = 1;
  const auto engine = start(options);
  const auto cases = golden_cases();
  std::vector<Reply> replies(3);
  Endings endings;
  for (int i = 0; i < 3; ++i) {
    // A background reply runs, another waits; what comes last is in the foreground.
    Request request = endless(cases[static_cast<size_t>(i)].prompt, i < 2 ? 120 : 8);
    request.priority = i < 2 ? Priority::background : Priority::foreground;
    replies[static_cast<size_t>(i)].attach(request);
    endings.attach(request, i);
    engine->submit(std::move(request));
    while (i == 0 && engine->status().reply_tokens < 3) std::this_thread::yield();
  }
  for (Reply& reply : replies) reply.wait();
  EXPECT_EQ(endings.order().front(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(replies[static_cast<size_t>(i)].tokens(),
              serial_reply(endless(cases[static_cast<size_t>(i)].prompt, 120)));
  }
}

/// Tokens that a running reply gets while a long prompt fills beside it.
size_t tokens_beside_a_prompt(double share) {
  EngineOptions options = small_options();
  options.prefill_rows = 32;
  options.decode_share = share;
  options.keep_prefixes = false;
  const auto engine = start(options);
  Reply running;
  Reply filling;
  std::atomic<size_t> delivered = 0;
  std::atomic<size_t> before = 0;
  std::atomic<size_t> after = 0;
  Request first = endless(golden_cases()[1].prompt, 900);
  first.on_tokens = [&](std::span<const int32_t> tokens, std::span<const TokenLogprobs>) {
    delivered += tokens.size();
    return true;
  };
  running.attach(first);
  const auto ticket = engine->submit(std::move(first));
  while (delivered < 3) std::this_thread::yield();
  Request second = endless(tokens_of(384, 1), 1);
  second.on_tokens = [&](std::span<const int32_t>, std::span<const TokenLogprobs>) {
    after = delivered.load();
    return true;
  };
  filling.attach(second);
  before = delivered.load();
  engine->submit(std::move(second));
  filling.wait();
  ticket->cancel();
  running.wait();
  return after - before;
}

TEST(Sharing, TheDecodeShareIsWhatRunningRepliesKeep) {
  // Twelve chunks: a token rides with each; with a share of its own the reply gets several between two.
  const size_t none = tokens_beside_a_prompt(0.0);
  const size_t most = tokens_beside_a_prompt(0.9);
  EXPECT_GE(none, 10U);
  EXPECT_LE(none, 24U);
  EXPECT_GT(most, 2 * none);
}

TEST(Sharing, ALongPromptIsNotStarvedByShortOnes) {
  EngineOptions options = small_options();
  options.prefill_rows = 32;
  options.keep_prefixes = false;
  const auto engine = start(options);
  Reply long_reply;
  Request long_request = endless(tokens_of(320, 2), 1);
  std::atomic<bool> answered = false;
  long_reply.attach(long_request);
  auto finish = long_request.on_finish;
  long_request.on_finish = [&, finish](const ReplyResult& result) {
    answered = true;
    finish(result);
  };
  engine->submit(std::move(long_request));
  // Three short prompts at any time, each two whole chunks: left alone, they take every prompt row there is.
  constexpr int most_short = 200;
  std::vector<Reply> shorts(most_short);
  int submitted = 0;
  for (; submitted < most_short && !answered; ++submitted) {
    Request request = endless(tokens_of(64, 3 + submitted), 1);
    shorts[static_cast<size_t>(submitted)].attach(request);
    engine->submit(std::move(request));
    if (submitted >= 3) shorts[static_cast<size_t>(submitted - 3)].wait();
  }
  EXPECT_TRUE(answered) << "not one of " << submitted << " short prompts let the long one end";
  for (int i = 0; i < submitted; ++i) shorts[static_cast<size_t>(i)].wait();
  long_reply.wait();
}

TEST(Sharing, AutomaticParallelRunsSeveralAtOnce) {
  EngineOptions options = small_options();
  options.parallel = 0;
  const auto engine = start(options);
  const int32_t lanes = engine->status().lanes;
  EXPECT_GE(lanes, 2);
  std::vector<Reply> replies(static_cast<size_t>(lanes) + 1);
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (size_t i = 0; i < replies.size(); ++i) {
    Request request = endless(tokens_of(20, static_cast<int32_t>(i)), 800);
    replies[i].attach(request);
    tickets.push_back(engine->submit(std::move(request)));
  }
  EngineStatus status = engine->status();
  for (int tries = 0; tries < 20000 && status.running < lanes; ++tries) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    status = engine->status();
  }
  EXPECT_EQ(status.running, lanes);
  EXPECT_EQ(status.waiting, 1);
  for (const auto& ticket : tickets) ticket->cancel();
  for (Reply& reply : replies) reply.wait();
}

}  // namespace
}  // namespace tensorfold::engine
