// A conversation of twelve turns through the chat template, thinking off: every turn prefills its prompt less what it
// shares with what was fed before, and nothing more; after a restart as well.
#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/loaded_model.h"
#include "shared_data.h"

namespace tensorfold::cli {
namespace {

constexpr const char* questions[] = {"Tell me a story about a fox.",
                                     "What is 17 + 25?",
                                     "Write a Python function that reverses a string.",
                                     "Count from 7 to 19.",
                                     "What is the capital of Japan?",
                                     "Tell me a story about an owl."};

class TwelveTurns : public ::testing::Test {
 protected:
  TwelveTurns() {
    std::random_device device;
    directory_ = std::filesystem::temp_directory_path() / fmt::format("tensorfold-turns-{:08x}", device());
    run_.backend = "cpu";
    run_.threads = 2;
    run_.context = 4096;
    run_.parallel = "1";
    run_.cache_gib = 0.5;
    run_.spill_gib = 1.0;
    run_.snapshot_dir = directory_.string();
    load();
  }
  ~TwelveTurns() override {
    loaded_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  void load() { loaded_ = load_model(tensorfold::testing::project_path("models/demo").string(), run_); }
  void restart() {
    loaded_.reset();
    load();
  }

  /// One more turn. Adds to the counts of what was prefilled and of what the formula allows.
  void turn(int number) {
    messages_.push_back({{"role", "user"}, {"content", questions[static_cast<size_t>(number) % std::size(questions)]}});
    server::RenderSettings settings;
    settings.thinking = false;
    const server::Prompt prompt = loaded_->renderer->render(messages_, server::Json(), settings);
    const std::vector<int32_t> reply = ask(prompt);
    const auto size = static_cast<int32_t>(prompt.ids.size());
    const auto shared = static_cast<int32_t>(
        std::mismatch(prompt.ids.begin(), prompt.ids.end(), fed_.begin(), fed_.end()).first - prompt.ids.begin());
    prompt_tokens_ += size;
    prefilled_ += size - cached_;
    allowed_ += size - shared;
    EXPECT_EQ(cached_, shared) << "turn " << number << " of " << size << " tokens";
    // The last token was drawn and never fed.
    fed_ = prompt.ids;
    fed_.insert(fed_.end(), reply.begin(), reply.end() - 1);
    std::vector<int32_t> words = reply;
    const auto& ends = loaded_->end_tokens;
    if (std::find(ends.begin(), ends.end(), words.back()) != ends.end()) words.pop_back();
    messages_.push_back({{"role", "assistant"}, {"content", loaded_->tokenizer->decode(words)}});
  }

  std::vector<int32_t> ask(const server::Prompt& prompt) {
    std::mutex mutex;
    std::condition_variable done;
    bool finished = false;
    std::vector<int32_t> tokens;
    engine::Request request;
    request.prompt = prompt.ids;
    request.snapshot_hints = prompt.snapshot_hints;
    request.system_tokens = prompt.system_tokens;
    request.max_tokens = 160;
    request.end_tokens = loaded_->end_tokens;
    request.on_tokens = [&](std::span<const int32_t> more, std::span<const engine::TokenLogprobs>) {
      tokens.insert(tokens.end(), more.begin(), more.end());
      return true;
    };
    request.on_finish = [&](const engine::ReplyResult& result) {
      const std::lock_guard lock(mutex);
      cached_ = result.statistics.cached_tokens;
      finished = true;
      done.notify_all();
    };
    loaded_->engine->submit(std::move(request));
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return finished; });
    return tokens;
  }

  std::filesystem::path directory_;
  RunOptions run_;
  std::unique_ptr<LoadedModel> loaded_;
  server::Json messages_ = server::Json::array();
  std::vector<int32_t> fed_;
  int32_t cached_ = 0;
  int32_t prompt_tokens_ = 0;
  int32_t prefilled_ = 0;
  int32_t allowed_ = 0;
};

TEST_F(TwelveTurns, PrefillOnlyWhatIsNew) {
  for (int number = 0; number < 12; ++number) turn(number);
  EXPECT_EQ(prefilled_, allowed_);
  EXPECT_LT(prefilled_, prompt_tokens_ / 4);
  RecordProperty("prompt_tokens", prompt_tokens_);
  RecordProperty("prefilled_tokens", prefilled_);
  fmt::print("twelve turns: {} prompt tokens, {} prefilled, {} by the formula\n", prompt_tokens_, prefilled_, allowed_);
}

TEST_F(TwelveTurns, PrefillOnlyWhatIsNewAfterRestarts) {
  for (int number = 0; number < 12; ++number) {
    if (number == 5 || number == 6 || number == 11) restart();
    turn(number);
  }
  EXPECT_EQ(prefilled_, allowed_);
  fmt::print("twelve turns, three restarts: {} prompt tokens, {} prefilled, {} by the formula\n", prompt_tokens_,
             prefilled_, allowed_);
}

}  // namespace
}  // namespace tensorfold::cli
