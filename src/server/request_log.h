// One line a request on standard output, and below them one live line in a terminal.
#pragma once

#include <cstdio>
#include <mutex>
#include <string>

#include "server/reply_sink.h"

namespace tensorfold::server {

enum class RequestLogFormat { text, json, off };

class RequestLog {
 public:
  explicit RequestLog(RequestLogFormat format) : format_(format) {}
  /// A finished reply. `label`: of the client's key, may be empty.
  void finished(const std::string& id, const std::string& label, const ReplySummary& summary, bool cancelled);
  /// A request that was refused or failed.
  void refused(const std::string& path, const std::string& label, int status, const std::string& message);

  /// Replaces the live line, which stays below the log; empty removes it. For terminals only.
  void live(const std::string& text);

 private:
  void line(const std::string& text);
  RequestLogFormat format_;
  std::mutex mutex_;
  std::string live_;
};

}  // namespace tensorfold::server
