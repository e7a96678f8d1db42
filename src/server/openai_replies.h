// Replies in OpenAI's frame, chat and text completions alike: the choices of a request share the connection.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/http_server.h"
#include "server/json_body.h"
#include "server/reply_sink.h"
#include "server/service.h"

namespace tensorfold::server {

/// What every chunk and the whole reply begin with.
struct Heading {
  std::string id;
  std::string object;
  int64_t created = 0;
  std::string model;
  [[nodiscard]] Json with(Json choices) const;
  /// The text of with() up to the first choice.
  [[nodiscard]] std::string opening() const;
};

/// An event stream: chunks, the finish of each choice, usage, [DONE]. Thread-safe.
class StreamedReplies {
 public:
  StreamedReplies(std::shared_ptr<Exchange> exchange, CheckedRequest checked, Heading heading)
      : exchange_(std::move(exchange)),
        checked_(std::move(checked)),
        heading_(std::move(heading)),
        chunk_opening_(heading_.opening()),
        waiting_(static_cast<size_t>(checked_.fields.choices)) {}

  /// Sends the head once.
  void begin();
  void send(const Json& choice);
  /// `choice`: the last chunk's, with the finish reason.
  void end(Json choice, const ReplySummary& summary);
  void failure(const ApiError& error);
  [[nodiscard]] size_t backlog() const { return exchange_->unsent(); }

 private:
  std::shared_ptr<Exchange> exchange_;
  CheckedRequest checked_;
  Heading heading_;
  std::string chunk_opening_;  // worded once: a stream repeats it with every token
  std::mutex mutex_;
  size_t waiting_;
  bool begun_ = false;
  bool failed_ = false;
  std::vector<ReplySummary> summaries_;
};

/// One JSON reply once all choices are there. Thread-safe.
class WholeReplies {
 public:
  using MakeChoice = std::function<Json(size_t index, const CollectedReply& reply)>;
  WholeReplies(std::shared_ptr<Exchange> exchange, CheckedRequest checked, Heading heading, MakeChoice make_choice);
  void done(size_t index, const CollectedReply& reply);

 private:
  std::shared_ptr<Exchange> exchange_;
  CheckedRequest checked_;
  Heading heading_;
  MakeChoice make_choice_;
  std::mutex mutex_;
  std::vector<Json> choices_;
  std::vector<ReplySummary> summaries_;
  size_t waiting_;
  std::optional<ApiError> failure_;
};

/// Sinks that feed a WholeReplies.
Service::Sinks whole_sinks(std::shared_ptr<WholeReplies> replies, int32_t choices);

}  // namespace tensorfold::server
