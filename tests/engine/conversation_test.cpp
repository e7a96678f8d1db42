// Turns of a conversation resume from what was kept, prefill only what is new, and reply as a fresh engine does.
#include <filesystem>
#include <random>

#include "engine_fixture.h"

namespace tensorfold::engine {
namespace {

using namespace testing;  // NOLINT: the fixture of this folder

/// Plays `turns` turns: each prompt is all that was fed and replied before, and a further question.
struct Conversation {
  std::vector<int32_t> prompt;
  std::vector<int32_t> cached;
  std::vector<int32_t> prompt_sizes;
  std::vector<std::vector<int32_t>> replies;

  void play(Engine& engine, int turns) {
    const auto cases = golden_cases();
    for (int turn = 0; turn < turns; ++turn) {
      const auto& question = cases[static_cast<size_t>(turn) % cases.size()].prompt;
      prompt.insert(prompt.end(), question.begin(), question.end());
      Request request = make_request(prompt, 24, turn % 2 == 0 ? 0.0 : 0.7);
      request.end_tokens.clear();
      Reply reply;
      reply.attach(request);
      prompt_sizes.push_back(static_cast<int32_t>(prompt.size()));
      engine.submit(std::move(request));
      cached.push_back(reply.wait().statistics.cached_tokens);
      replies.push_back(reply.tokens());
      prompt.insert(prompt.end(), reply.tokens().begin(), reply.tokens().end());
    }
  }
};

TEST(ConversationTest, EveryTurnPrefillsOnlyWhatIsNewAndRepliesAsAFreshEngine) {
  EngineOptions options = small_options();
  options.context = 1024;
  const auto engine = start(options);
  Conversation conversation;
  conversation.play(*engine, 8);
  for (size_t turn = 1; turn < conversation.cached.size(); ++turn) {
    // Everything that was fed before: the earlier prompt and reply less its last token.
    EXPECT_EQ(conversation.cached[turn], conversation.prompt_sizes[turn - 1] + 23) << turn;
  }
  EngineOptions plain = small_options();
  plain.keep_prefixes = false;
  Conversation fresh;
  fresh.play(*start(plain), 8);
  EXPECT_EQ(fresh.replies, conversation.replies);
  for (const int32_t cached : fresh.cached) EXPECT_EQ(cached, 0);
}

TEST(ConversationTest, GoesOnAfterARestart) {
  std::random_device device;
  const auto directory = std::filesystem::temp_directory_path() / fmt::format("tensorfold-restart-{:08x}", device());
  EngineOptions options = small_options();
  options.snapshot_directory = directory;
  options.disk_bytes = uint64_t{1} << 30;
  options.weights_identity = "demo";
  Conversation conversation;
  for (int life = 0; life < 3; ++life) {
    auto engine = start(options);
    conversation.play(*engine, 2);
    engine->stop();
    engine.reset();
  }
  EXPECT_EQ(conversation.cached[2], conversation.prompt_sizes[1] + 23);
  EXPECT_EQ(conversation.cached[4], conversation.prompt_sizes[3] + 23);
  Conversation fresh;
  EngineOptions plain = small_options();
  plain.keep_prefixes = false;
  const auto engine = start(plain);
  for (int life = 0; life < 3; ++life) fresh.play(*engine, 2);
  EXPECT_EQ(fresh.replies, conversation.replies);
  std::error_code error;
  std::filesystem::remove_all(directory, error);
}

TEST(ConversationTest, TheSamePromptAgainResumesNearItsEnd) {
  std::vector<int32_t> prompt;
  for (const GoldenCase& golden : golden_cases()) {
    prompt.insert(prompt.end(), golden.prompt.begin(), golden.prompt.end());
    if (prompt.size() > 400) break;
  }
  const auto engine = start(small_options());
  for (int times = 0; times < 2; ++times) {
    Request request = make_request(prompt, 8);
    Reply reply;
    reply.attach(request);
    engine->submit(std::move(request));
    const int32_t cached = reply.wait().statistics.cached_tokens;
    EXPECT_EQ(cached, times == 0 ? 0 : static_cast<int32_t>(prompt.size()) - 1);
  }
}

}  // namespace
}  // namespace tensorfold::engine
