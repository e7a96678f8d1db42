// The demonstration model behind an engine, and requests that wait for their reply.
#pragma once

#include <condition_variable>
#include <fstream>
#include <memory>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "backend/keyed_sampling.h"
#include "drafters/scripted_drafter.h"
#include "engine/engine.h"
#include "families/checkpoint.h"
#include "shared_data.h"

namespace tensorfold::engine::testing {

struct Subject {
  std::unique_ptr<backend::Backend> backend;
  families::LoadedModel loaded;
  families::Model& model() { return *loaded.model; }
};

inline std::unique_ptr<Subject> load_subject(const std::string& directory, int threads, int32_t max_rows = 640) {
  auto subject = std::make_unique<Subject>();
  subject->backend = backend::make_cpu_backend(threads);
  subject->loaded = families::load_model(tensorfold::testing::project_path(directory), *subject->backend, max_rows);
  return subject;
}

/// The demonstration model, loaded once.
inline Subject& demo() {
  static const std::unique_ptr<Subject> subject = load_subject("models/demo", 2);
  return *subject;
}

struct GoldenCase {
  std::vector<int32_t> prompt;
  std::vector<int32_t> reply;
};

inline std::vector<GoldenCase> golden_cases() {
  std::ifstream file(tensorfold::testing::project_path("models/demo/golden_replies.json"));
  std::vector<GoldenCase> cases;
  for (const auto& item : nlohmann::json::parse(file)) {
    cases.push_back({item["prompt_ids"].get<std::vector<int32_t>>(), item["reply_ids"].get<std::vector<int32_t>>()});
  }
  return cases;
}

/// A reply that somebody waits for.
class Reply {
 public:
  void attach(Request& request) {
    auto tokens_sink = request.on_tokens;
    request.on_tokens = [this, tokens_sink](std::span<const int32_t> tokens, std::span<const TokenLogprobs> logprobs) {
      {
        const std::lock_guard lock(mutex_);
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
      }
      return !tokens_sink || tokens_sink(tokens, logprobs);
    };
    request.on_finish = [this](const ReplyResult& result) {
      const std::lock_guard lock(mutex_);
      result_ = result;
      ++finishes_;
      done_.notify_all();
    };
  }
  const ReplyResult& wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return finishes_ > 0; });
    return result_;
  }
  [[nodiscard]] const std::vector<int32_t>& tokens() const { return tokens_; }
  [[nodiscard]] const std::vector<TokenLogprobs>& logprobs() const { return logprobs_; }
  [[nodiscard]] int finishes() const { return finishes_; }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<int32_t> tokens_;
  std::vector<TokenLogprobs> logprobs_;
  ReplyResult result_;
  int finishes_ = 0;
};

inline Request make_request(const std::vector<int32_t>& prompt, int32_t max_tokens, double temperature = 0.0) {
  Request request;
  request.prompt = prompt;
  request.max_tokens = max_tokens;
  request.end_tokens = demo().model().info().end_tokens;
  request.sampling = {
      .temperature = temperature, .top_k = 0, .top_p = 0.95, .min_p = 0.0, .seed = backend::default_seed(prompt)};
  return request;
}

/// Submits, waits, returns the tokens.
inline std::vector<int32_t> generate(Engine& engine, Request request) {
  Reply reply;
  reply.attach(request);
  engine.submit(std::move(request));
  const ReplyResult& result = reply.wait();
  EXPECT_EQ(result.error, "");
  return reply.tokens();
}

inline std::unique_ptr<Engine> start(const EngineOptions& options,
                                     std::unique_ptr<drafters::Drafter> drafter = nullptr) {
  std::vector<std::unique_ptr<drafters::Drafter>> drafters;
  if (drafter) drafters.push_back(std::move(drafter));
  return start_engine(*demo().backend, demo().model(), options, std::move(drafters));
}

inline EngineOptions small_options() {
  EngineOptions options;
  options.context = 1024;
  options.parallel = 4;
  options.prefill_rows = 128;
  options.memory_budget = uint64_t{256} << 20;
  return options;
}

/// A serial engine: no drafts, one lane.
inline std::vector<int32_t> serial_reply(Request request) {
  EngineOptions options = small_options();
  options.parallel = 1;
  options.drafts = false;
  const auto engine = start(options);
  request.draft = false;
  return generate(*engine, std::move(request));
}

}  // namespace tensorfold::engine::testing
