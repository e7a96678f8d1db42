// One reply under way, beside a client that does not read.
#include "server/generation.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "server/scripted_api.h"

namespace tensorfold::server {
namespace {

/// Counts what it is told; `unread` is what its client has not taken.
class SlowSink final : public ReplySink {
 public:
  void on_reasoning(std::string_view) override {}
  void on_content(std::string_view text) override {
    content += text;
    ++pieces;
  }
  void on_call(size_t, const std::string&, const std::string&) override {}
  void on_arguments(size_t, std::string_view) override {}
  void on_end(const ReplySummary& summary) override {
    tokens = summary.tokens.size();
    ended = true;
  }
  void on_failure(const ApiError&) override { ended = true; }
  [[nodiscard]] size_t backlog() const override { return unread; }

  std::atomic<size_t> unread{0};
  std::string content;
  std::atomic<int> pieces{0};
  std::atomic<size_t> tokens{0};
  std::atomic<bool> ended{false};
};

TEST(Generation, WordsNothingWhileItsClientHasMuchUnread) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += " word";
  Script script;
  script.tokens = demo_tokenizer().encode(text);
  ScriptedEngine engine([&](const engine::Request&) { return script; });
  WorkPool pool(2);
  ReplyPlan plan;
  plan.request.prompt = {5};
  plan.request.max_tokens = 4000;
  plan.text.plain = true;
  const auto sink = std::make_shared<SlowSink>();
  sink->unread = size_t{1} << 20;
  const auto reply = std::make_shared<Generation>(pool, demo_tokenizer(), plan, sink);
  reply->start(engine);
  reply->open({});
  while (engine.running() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(sink->pieces, 0) << "tokens stay tokens: four bytes each instead of an event";
  EXPECT_FALSE(sink->ended);
  sink->unread = 0;
  reply->resume();
  for (int tries = 0; tries < 2000 && !sink->ended; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(sink->ended);
  EXPECT_EQ(sink->content, text);
  EXPECT_EQ(sink->tokens, script.tokens.size());
}

}  // namespace
}  // namespace tensorfold::server
