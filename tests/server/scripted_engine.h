// An engine that draws nothing: it delivers a text's tokens as the test says, so that everything above it can be tested
// without a model.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace tensorfold::server {

/// What a reply is made of.
struct Script {
  std::vector<int32_t> tokens;         ///< ends with an end token or is cut by max_tokens
  size_t tokens_a_round = 1;           ///< delivered together, as accepted drafts are
  std::chrono::microseconds pause{0};  ///< before each round
  std::string failure;                 ///< not empty: fails with this after the tokens
};

class ScriptedEngine final : public engine::Engine {
 public:
  using Writer = std::function<Script(const engine::Request&)>;
  explicit ScriptedEngine(Writer writer, int32_t context = 4096) : writer_(std::move(writer)), context_(context) {}
  ~ScriptedEngine() override { stop(); }

  std::shared_ptr<engine::Ticket> submit(engine::Request request) override {
    auto ticket = std::make_shared<FlagTicket>();
    const std::lock_guard lock(mutex_);
    if (stopped_) throw Error(ErrorKind::cancelled, "the engine has stopped");
    last_request_ = request;
    ++submitted_;
    ++running_;
    threads_.emplace_back([this, request = std::move(request), ticket] { run(request, *ticket); });
    return ticket;
  }
  [[nodiscard]] engine::EngineStatus status() const override {
    engine::EngineStatus status;
    status.context = context_;
    status.running = running_;
    status.lanes = lanes;
    return status;
  }
  void stop() override {
    std::vector<std::thread> threads;
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }
  engine::Request last_request() {
    const std::lock_guard lock(mutex_);
    return last_request_;
  }
  /// When rounds were handed out, over all requests.
  std::vector<std::chrono::steady_clock::time_point> deliveries() {
    const std::lock_guard lock(mutex_);
    return deliveries_;
  }
  [[nodiscard]] int submitted() const { return submitted_; }
  [[nodiscard]] int running() const { return running_; }
  [[nodiscard]] int cancelled() const { return cancelled_; }
  std::atomic<int32_t> lanes{8};  ///< as it says; it runs whatever comes

 private:
  struct FlagTicket final : engine::Ticket {
    void cancel() override { flag = true; }
    std::atomic<bool> flag{false};
  };

  void run(const engine::Request& request, const FlagTicket& ticket) {
    const Script script = writer_(request);
    engine::ReplyResult result;
    result.reason = engine::FinishReason::length;
    result.statistics.prompt_tokens = static_cast<int32_t>(request.prompt.size());
    size_t sent = 0;
    const auto limit = std::min(script.tokens.size(), static_cast<size_t>(request.max_tokens));
    bool ended = false;
    while (sent < limit && !ended) {
      if (script.pause.count() > 0) std::this_thread::sleep_for(script.pause);
      if (ticket.flag || stopped_) {
        result.reason = engine::FinishReason::cancelled;
        ++cancelled_;
        break;
      }
      std::vector<int32_t> round;
      while (sent < limit && round.size() < script.tokens_a_round && !ended) {
        round.push_back(script.tokens[sent++]);
        ended =
            std::find(request.end_tokens.begin(), request.end_tokens.end(), round.back()) != request.end_tokens.end();
      }
      std::vector<engine::TokenLogprobs> logprobs;
      if (request.top_logprobs >= 0) {
        for (const int32_t token : round) logprobs.push_back({token, -0.5F, {{token, -0.5F}, {5, -2.0F}}});
      }
      {
        const std::lock_guard lock(mutex_);
        deliveries_.push_back(std::chrono::steady_clock::now());
      }
      if (!request.on_tokens(round, logprobs)) ended = true;
    }
    if (ended) result.reason = engine::FinishReason::stop;
    if (!script.failure.empty()) {
      result.reason = engine::FinishReason::failed;
      result.error = script.failure;
    }
    result.statistics.reply_tokens = static_cast<int32_t>(sent);
    --running_;
    request.on_finish(result);
  }

  Writer writer_;
  int32_t context_;
  std::mutex mutex_;
  std::vector<std::thread> threads_;
  engine::Request last_request_;
  std::vector<std::chrono::steady_clock::time_point> deliveries_;
  std::atomic<bool> stopped_{false};
  std::atomic<int> submitted_{0};
  std::atomic<int> running_{0};
  std::atomic<int> cancelled_{0};
};

}  // namespace tensorfold::server
