// One line a reply or refusal on standard output, and below them one live line in a terminal.
#pragma once

#include <cstddef>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>

#include "server/reply_sink.h"

namespace tensorfold::server {

enum class RequestLogFormat { text, json, off };

/// The request that a line is about.
struct RequestOrigin {
  std::string id;
  std::string label;  ///< of the client's key; may be empty
  std::string path;   ///< may be empty: the request could not be read
};

/// What came of a request for decisions.
struct DecisionsSummary {
  size_t questions = 0;
  engine::ReplyStatistics statistics;  ///< of all prompts together
  double seconds = 0.0;                ///< arrival to end
  double first_token = -1.0;           ///< arrival to the first label's share; negative: none came
  bool left = false;                   ///< the client did not wait
};

class RequestLog {
 public:
  explicit RequestLog(RequestLogFormat format) : format_(format) {}
  /// A reply has ended. `choice`: of a request for several.
  void finished(const RequestOrigin& origin, const ReplySummary& summary, bool cancelled,
                std::optional<size_t> choice = std::nullopt);
  /// Decisions were made; nothing was generated.
  void scored(const RequestOrigin& origin, const DecisionsSummary& summary);
  /// A request was refused or failed.
  void refused(const RequestOrigin& origin, int status, const std::string& message);

  /// Replaces the live line, which stays below the log; empty removes it. For terminals only.
  void live(const std::string& text);

 private:
  void line(const std::string& text);
  RequestLogFormat format_;
  std::mutex mutex_;
  std::string live_;
};

}  // namespace tensorfold::server
