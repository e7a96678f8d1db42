// One reply under way: tokens come from the engine's thread, are turned into text and events on the server's threads,
// and go to a sink.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"
#include "server/reply_sink.h"
#include "server/reply_text.h"
#include "server/work_pool.h"
#include "text/tokenizer.h"

namespace tensorfold::server {

/// Everything that one choice of a reply needs.
struct ReplyPlan {
  engine::Request request;  ///< without callbacks
  ReplyTextSettings text;
  std::vector<int32_t> end_tokens;  ///< end the reply and are not text; empty with ignore_eos
  std::chrono::steady_clock::time_point arrival;
  std::function<void(size_t tokens)> counted;  ///< told of more tokens of the reply; may be null
  std::shared_ptr<const void> place;           ///< dropped as soon as the engine is done with the reply
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(WorkPool& pool, const text::Tokenizer& tokenizer, ReplyPlan plan, std::shared_ptr<ReplySink> sink);

  using Ended = std::function<void(const ReplySummary&, bool cancelled)>;
  /// Submits to the engine; throws what Engine::submit throws. Keeps itself alive until the reply has ended. Events
  /// wait for open().
  void start(engine::Engine& engine);
  /// Lets the events flow, on_begin() first. `ended` is called once, last, on a server thread.
  void open(Ended ended);
  /// The client left: nothing more is worded, the place is freed at the next token. Any thread.
  void cancel();
  /// The sink's backlog has gone down. Any thread.
  void resume();

 private:
  void receive(std::span<const int32_t> tokens, std::span<const engine::TokenLogprobs> logprobs);
  void finish(const engine::ReplyResult& result);
  void schedule();
  void step();
  void take(int32_t token, const engine::TokenLogprobs* logprobs);
  void cut_engine();
  void conclude(const engine::ReplyResult& result);

  std::shared_ptr<SerialQueue> queue_;
  ReplyPlan plan_;
  std::shared_ptr<ReplySink> sink_;
  text::StreamingDecoder decoder_;
  ReplyText text_;
  ReplySummary summary_;
  Ended ended_;
  bool stopped_ = false;  // a stop string or the one allowed call ended the reply
  bool concluded_ = false;

  std::mutex mutex_;  // guards what follows
  std::shared_ptr<engine::Ticket> ticket_;
  std::vector<int32_t> inbox_;
  std::vector<engine::TokenLogprobs> inbox_logprobs_;
  std::optional<engine::ReplyResult> result_;
  bool gated_ = true;
  bool scheduled_ = false;
  bool cancelled_ = false;
  bool cut_ = false;
  double first_token_ = -1.0;
};

}  // namespace tensorfold::server
