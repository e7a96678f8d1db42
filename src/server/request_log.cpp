#include "server/request_log.h"

#include <fmt/format.h>

#include "server/generation_fields.h"
#include "server/json_body.h"

namespace tensorfold::server {
namespace {

double rate(int32_t tokens, double seconds) { return seconds > 0.0 ? tokens / seconds : 0.0; }

}  // namespace

void RequestLog::finished(const std::string& id, const std::string& label, const ReplySummary& summary,
                          bool cancelled) {
  if (format_ == RequestLogFormat::off) return;
  const engine::ReplyStatistics& counts = summary.statistics;
  const std::string finish = cancelled ? "left" : summary.finish_reason;
  const double decode_rate = rate(counts.reply_tokens, counts.decode_seconds);
  if (format_ == RequestLogFormat::json) {
    Json entry = {{"id", id},
                  {"key", label},
                  {"prompt_tokens", counts.prompt_tokens},
                  {"cached_tokens", counts.cached_tokens},
                  {"reply_tokens", counts.reply_tokens},
                  {"first_token_seconds", summary.first_token < 0 ? Json(nullptr) : Json(summary.first_token)},
                  {"seconds", summary.seconds},
                  {"tokens_per_second", decode_rate},
                  {"drafted", counts.drafted},
                  {"accepted", counts.accepted},
                  {"token_sha", token_sha(summary.tokens)},
                  {"finish", finish}};
    line(dump(entry));
    return;
  }
  const std::string first_token =
      summary.first_token < 0 ? "no token" : fmt::format("first token {:.3f} s", summary.first_token);
  line(fmt::format(
      "[tensorfold] done {}{}{}: prompt {} (cached {}), reply {} ({}), {}, total {:.3f} s, "
      "{:.1f} tokens/s, drafts {}/{}, {}",
      id, label.empty() ? "" : " ", label, counts.prompt_tokens, counts.cached_tokens, counts.reply_tokens,
      token_sha(summary.tokens), first_token, summary.seconds, decode_rate, counts.accepted, counts.drafted, finish));
}

void RequestLog::refused(const std::string& path, const std::string& label, int status, const std::string& message) {
  if (format_ == RequestLogFormat::off) return;
  const std::string shown = message.substr(0, 300);
  if (format_ == RequestLogFormat::json) {
    line(dump({{"path", path}, {"key", label}, {"status", status}, {"error", shown}}));
    return;
  }
  std::string one_line = shown;
  for (char& c : one_line) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  line(fmt::format("[tensorfold] refused {}{}{} with {}: {}", path, label.empty() ? "" : " ", label, status, one_line));
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
