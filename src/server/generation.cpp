#include "server/generation.h"

#include <algorithm>
#include <utility>

namespace tensorfold::server {
namespace {

/// While a client has this much unread, its reply stays token ids: four bytes each instead of an event's two hundred.
constexpr size_t backlog_limit = size_t{256} << 10;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n\f\v";
  const size_t first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

Generation::Generation(WorkPool& pool, const text::Tokenizer& tokenizer, ReplyPlan plan,
                       std::shared_ptr<ReplySink> sink)
    : queue_(std::make_shared<SerialQueue>(pool)),
      plan_(std::move(plan)),
      sink_(std::move(sink)),
      decoder_(tokenizer),
      text_(plan_.text) {}

void Generation::start(engine::Engine& engine) {
  engine::Request request = plan_.request;
  request.on_tokens = [self = shared_from_this()](std::span<const int32_t> tokens,
                                                  std::span<const engine::TokenLogprobs> logprobs) {
    self->receive(tokens, logprobs);
    return true;  // stop strings are found on the server's threads, which cut the reply
  };
  request.on_finish = [self = shared_from_this()](const engine::ReplyResult& result) { self->finish(result); };
  std::shared_ptr<engine::Ticket> ticket = engine.submit(std::move(request));
  bool cut = false;
  {
    const std::lock_guard lock(mutex_);
    ticket_ = ticket;
    cut = cut_;
  }
  if (cut) ticket->cancel();
}

void Generation::open(Ended ended) {
  ended_ = std::move(ended);
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    cancelled = cancelled_;
  }
  if (!cancelled) sink_->on_begin();
  {
    const std::lock_guard lock(mutex_);
    gated_ = false;
  }
  schedule();
}

void Generation::cancel() {
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_) return;
    cancelled_ = true;
  }
  cut_engine();
  schedule();
}

void Generation::cut_engine() {
  std::shared_ptr<engine::Ticket> ticket;
  {
    const std::lock_guard lock(mutex_);
    cut_ = true;
    ticket = ticket_;
  }
  if (ticket) ticket->cancel();
}

void Generation::resume() { schedule(); }

void Generation::receive(std::span<const int32_t> tokens, std::span<const engine::TokenLogprobs> logprobs) {
  {
    const std::lock_guard lock(mutex_);
    if (cut_) return;
    if (first_token_ < 0.0) first_token_ = seconds_since(plan_.arrival);
    inbox_.insert(inbox_.end(), tokens.begin(), tokens.end());
    inbox_logprobs_.insert(inbox_logprobs_.end(), logprobs.begin(), logprobs.end());
  }
  schedule();
}

void Generation::finish(const engine::ReplyResult& result) {
  plan_.place.reset();  // before the client can know
  {
    const std::lock_guard lock(mutex_);
    result_ = result;
  }
  schedule();
}

void Generation::schedule() {
  {
    const std::lock_guard lock(mutex_);
    if (scheduled_ || gated_) return;
    scheduled_ = true;
  }
  queue_->post([self = shared_from_this()] { self->step(); });
}

void Generation::step() {
  std::vector<int32_t> tokens;
  std::vector<engine::TokenLogprobs> logprobs;
  std::optional<engine::ReplyResult> result;
  {
    const std::lock_guard lock(mutex_);
    scheduled_ = false;
    if (concluded_) return;
    if (!cancelled_ && sink_->backlog() > backlog_limit) return;  // resume() comes when the client has read on
    tokens.swap(inbox_);
    logprobs.swap(inbox_logprobs_);
    result = result_;
    if (cancelled_) tokens.clear();
  }
  try {
    for (size_t i = 0; i < tokens.size() && !stopped_; ++i) {
      take(tokens[i], i < logprobs.size() ? &logprobs[i] : nullptr);
    }
    if (!tokens.empty()) sink_->on_step_end();
  } catch (...) {
    // Ours or the sink's fault: this reply ends, the others go on.
    const ApiError error = to_api_error(std::current_exception());
    engine::ReplyResult failed;
    failed.reason = engine::FinishReason::failed;
    failed.error = error.what();
    cut_engine();
    conclude(failed);
    return;
  }
  if (stopped_) cut_engine();
  if (result) conclude(*result);
}

void Generation::take(int32_t token, const engine::TokenLogprobs* logprobs) {
  summary_.tokens.push_back(token);
  if (plan_.counted) plan_.counted(1);
  if (logprobs != nullptr) sink_->on_logprobs(*logprobs);
  const bool reasoning = text_.in_reasoning();
  const bool closed_late = text_.closed_late();
  const bool is_end = std::find(plan_.end_tokens.begin(), plan_.end_tokens.end(), token) != plan_.end_tokens.end();
  if (!is_end) stopped_ = text_.push(token, decoder_.push(token), *sink_);
  if (reasoning) ++summary_.reasoning_tokens;
  if (text_.closed_late() && !closed_late) summary_.reasoning_tokens = static_cast<int32_t>(summary_.tokens.size());
}

void Generation::conclude(const engine::ReplyResult& result) {
  concluded_ = true;
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    cancelled = cancelled_;
    summary_.first_token = first_token_;
    ticket_.reset();
  }
  summary_.statistics = result.statistics;
  summary_.statistics.reply_tokens = static_cast<int32_t>(summary_.tokens.size());
  summary_.seconds = seconds_since(plan_.arrival);
  const bool failed = result.reason == engine::FinishReason::failed;
  const bool interrupted = result.reason == engine::FinishReason::cancelled && !stopped_;
  if (!cancelled) {
    if (failed || interrupted) {
      summary_.finish_reason = failed ? "failed" : "shutdown";
      sink_->on_failure(failed
                            ? ApiError(500, "server_error", result.error.empty() ? "generation failed" : result.error)
                            : ApiError(503, "server_error", "the server is shutting down"));
    } else {
      if (!stopped_) {
        stopped_ = text_.push_rest(decoder_.flush(), *sink_);
      }
      text_.finish(stopped_ || result.reason == engine::FinishReason::length, *sink_);
      summary_.stop_sequence = text_.stop_sequence();
      summary_.finish_reason = text_.calls() > 0                                         ? "tool_calls"
                               : stopped_ || result.reason == engine::FinishReason::stop ? "stop"
                                                                                         : "length";
      // A call that the limit cut is no call to be made.
      if (text_.calls() > 0 && result.reason == engine::FinishReason::length && !stopped_) {
        summary_.finish_reason = "length";
      }
      sink_->on_step_end();
      sink_->on_end(summary_);
    }
  }
  if (ended_) ended_(summary_, cancelled);
  ended_ = nullptr;
  sink_.reset();
}

}  // namespace tensorfold::server
