// What a dialect is told while a reply is made. One pipeline feeds every dialect, streamed or not, so that they agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/api_error.h"

namespace tensorfold::server {

/// How a reply ended, and its counts.
struct ReplySummary {
  std::string finish_reason;                 ///< "stop", "length" or "tool_calls"; "failed" or "shutdown" for the log
  std::optional<std::string> stop_sequence;  ///< the stop string that ended it
  std::vector<int32_t> tokens;               ///< through the token that ended it
  int32_t reasoning_tokens = 0;              ///< through the closing marker
  engine::ReplyStatistics statistics;
  double seconds = 0.0;       ///< arrival to end
  double first_token = -1.0;  ///< arrival to first token; negative: none came
};

/// The events of one reply, in order, one at a time. A step is what one delivery of tokens brought.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  /// The engine has taken the request: nothing can be refused any more.
  virtual void on_begin() {}
  virtual void on_reasoning(std::string_view text) = 0;
  virtual void on_content(std::string_view text) = 0;
  /// All content so far turns out to have been reasoning; what a stream has sent stays what it was.
  virtual void on_content_was_reasoning() {}
  /// A call begins; `index` counts the reply's calls from 0.
  virtual void on_call(size_t index, const std::string& id, const std::string& name) = 0;
  /// More of the call's arguments, compact JSON.
  virtual void on_arguments(size_t index, std::string_view piece) = 0;
  virtual void on_logprobs(const engine::TokenLogprobs& /*token*/) {}
  virtual void on_step_end() {}
  virtual void on_end(const ReplySummary& summary) = 0;
  /// Instead of on_end: the engine failed.
  virtual void on_failure(const ApiError& error) = 0;
  /// Bytes that wait for the client; the reply is not worded further while there are many.
  [[nodiscard]] virtual size_t backlog() const { return 0; }
};

/// `text` without white space at its ends.
std::string_view trimmed(std::string_view text);

struct CollectedCall {
  std::string id;
  std::string name;
  std::string arguments;
};

/// A whole reply, for those who do not stream.
class CollectedReply final : public ReplySink {
 public:
  using Done = std::function<void(const CollectedReply&)>;
  explicit CollectedReply(Done done) : done_(std::move(done)) {}

  void on_reasoning(std::string_view text) override { reasoning += text; }
  void on_content(std::string_view text) override { content += text; }
  void on_content_was_reasoning() override {
    reasoning = trimmed(content);
    content.clear();
  }
  void on_call(size_t, const std::string& id, const std::string& name) override { calls.push_back({id, name, {}}); }
  void on_arguments(size_t index, std::string_view piece) override { calls.at(index).arguments += piece; }
  void on_logprobs(const engine::TokenLogprobs& token) override { logprobs.push_back(token); }
  void on_end(const ReplySummary& ended) override {
    summary = ended;
    done_(*this);
  }
  void on_failure(const ApiError& error) override {
    failure = error;
    done_(*this);
  }

  std::string reasoning;
  std::string content;
  std::vector<CollectedCall> calls;
  std::vector<engine::TokenLogprobs> logprobs;
  ReplySummary summary;
  std::optional<ApiError> failure;

 private:
  Done done_;
};

}  // namespace tensorfold::server
