#include "server/request_log.h"

#include <chrono>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "server/generation_fields.h"
#include "server/json_body.h"

namespace tensorfold::server {
namespace {

double rate(int32_t tokens, double seconds) { return seconds > 0.0 ? tokens / seconds : 0.0; }

/// Now, as RFC 3339 writes it, in UTC.
std::string timestamp() {
  const auto now = std::chrono::system_clock::now();
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  return fmt::format("{:%FT%T}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)), since % 1000);
}

/// What the client was answered with, or would have been.
int status_of(const std::string& finish) {
  if (finish == "left") return 499;  // nobody was there to be told; the usual number in logs
  if (finish == "failed") return 500;
  return finish == "shutdown" ? 503 : 200;
}

Json entry_of(const char* kind, const RequestOrigin& origin, int status) {
  return {{"time", timestamp()}, {"kind", kind},        {"id", origin.id},
          {"key", origin.label}, {"path", origin.path}, {"status", status}};
}

Json seconds_or_null(double seconds) { return seconds < 0 ? Json(nullptr) : Json(seconds); }

std::string first_token_text(double seconds) {
  return seconds < 0 ? "no token" : fmt::format("first token {:.3f} s", seconds);
}

/// "ID" or "ID LABEL".
std::string name_of(const RequestOrigin& origin) {
  return origin.label.empty() ? origin.id : origin.id + " " + origin.label;
}

}  // namespace

void RequestLog::finished(const RequestOrigin& origin, const ReplySummary& summary, bool cancelled,
                          std::optional<size_t> choice) {
  if (format_ == RequestLogFormat::off) return;
  const engine::ReplyStatistics& counts = summary.statistics;
  const std::string finish = cancelled ? "left" : summary.finish_reason;
  const double decode_rate = rate(counts.reply_tokens, counts.decode_seconds);
  if (format_ == RequestLogFormat::json) {
    Json entry = entry_of("reply", origin, status_of(finish));
    if (choice) entry["choice"] = *choice;
    entry.update({{"prompt_tokens", counts.prompt_tokens},
                  {"cached_tokens", counts.cached_tokens},
                  {"reply_tokens", counts.reply_tokens},
                  {"first_token_seconds", seconds_or_null(summary.first_token)},
                  {"seconds", summary.seconds},
                  {"tokens_per_second", decode_rate},
                  {"drafted", counts.drafted},
                  {"accepted", counts.accepted},
                  {"token_sha", token_sha(summary.tokens)},
                  {"finish", finish}});
    line(dump(entry));
    return;
  }
  line(fmt::format(
      "[tensorfold] done {}{}: prompt {} (cached {}), reply {} ({}), {}, total {:.3f} s, {:.1f} tokens/s, "
      "drafts {}/{}, {}",
      name_of(origin), choice ? fmt::format(" choice {}", *choice) : "", counts.prompt_tokens, counts.cached_tokens,
      counts.reply_tokens, token_sha(summary.tokens), first_token_text(summary.first_token), summary.seconds,
      decode_rate, counts.accepted, counts.drafted, finish));
}

void RequestLog::scored(const RequestOrigin& origin, const DecisionsSummary& summary) {
  if (format_ == RequestLogFormat::off) return;
  const engine::ReplyStatistics& counts = summary.statistics;
  const std::string finish = summary.left ? "left" : "stop";
  if (format_ == RequestLogFormat::json) {
    Json entry = entry_of("decisions", origin, status_of(finish));
    entry.update({{"questions", summary.questions},
                  {"prompt_tokens", counts.prompt_tokens},
                  {"cached_tokens", counts.cached_tokens},
                  {"first_token_seconds", seconds_or_null(summary.first_token)},
                  {"seconds", summary.seconds},
                  {"finish", finish}});
    line(dump(entry));
    return;
  }
  line(fmt::format("[tensorfold] done {}: {} decisions, prompts {} (cached {}), {}, total {:.3f} s, {}",
                   name_of(origin), summary.questions, counts.prompt_tokens, counts.cached_tokens,
                   first_token_text(summary.first_token), summary.seconds, finish));
}

void RequestLog::refused(const RequestOrigin& origin, int status, const std::string& message) {
  if (format_ == RequestLogFormat::off) return;
  const std::string shown = message.substr(0, 300);
  if (format_ == RequestLogFormat::json) {
    Json entry = entry_of("refused", origin, status);
    entry["error"] = shown;
    line(dump(entry));
    return;
  }
  std::string one_line = fmt::format("{} ({}) with {}: {}", origin.path.empty() ? "an unreadable request" : origin.path,
                                     name_of(origin), status, shown);
  for (char& c : one_line) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  line("[tensorfold] refused " + one_line);
}

namespace {

void write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

constexpr const char* clear_line = "\r\x1b[K";

}  // namespace

void RequestLog::line(const std::string& text) {
  const std::lock_guard lock(mutex_);
  write(live_.empty() ? text + "\n" : clear_line + text + "\n" + live_);
}

void RequestLog::live(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (text == live_) return;
  write(clear_line + text);
  live_ = text;
}

}  // namespace tensorfold::server
