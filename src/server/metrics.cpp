#include "server/metrics.h"

#include <algorithm>

#include <fmt/format.h>

namespace tensorfold::server {
namespace {

void write_head(std::string& out, const std::string& name, const std::string& type, const std::string& help) {
  out += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

/// One value under our name, and under vLLM's where it has one.
void write_value(std::string& out, const std::string& type, double value, const std::string& name,
                 const std::string& mirror, const std::string& help) {
  for (const std::string& full : {"tensorfold:" + name, mirror.empty() ? mirror : "vllm:" + mirror}) {
    if (full.empty()) continue;
    write_head(out, full, type, help);
    out += fmt::format("{} {}\n", full, value);
  }
}

}  // namespace

void Histogram::observe(double seconds) {
  const auto edge = std::lower_bound(edges.begin(), edges.end(), seconds);
  ++counts_[static_cast<size_t>(edge - edges.begin())];
  sum_ += seconds;
}

void Histogram::write(std::string& out, const std::string& name, const std::string& help) const {
  write_head(out, name, "histogram", help);
  uint64_t total = 0;
  for (size_t i = 0; i < edges.size(); ++i) {
    total += counts_[i];
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, edges[i], total);
  }
  total += counts_.back();
  out += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, total, sum_);
}

namespace {

uint64_t count(int32_t value) { return static_cast<uint64_t>(std::max(value, 0)); }

}  // namespace

void Metrics::drawn(size_t tokens) {
  const std::lock_guard lock(mutex_);
  running_tokens_ += tokens;
}

void Metrics::withdrawn(size_t tokens) {
  const std::lock_guard lock(mutex_);
  running_tokens_ -= tokens;
}

uint64_t Metrics::reply_tokens() const {
  const std::lock_guard lock(mutex_);
  return reply_tokens_ + running_tokens_;
}

void Metrics::observe(const ReplyTimes& times) {
  latency_.observe(times.total);
  if (times.first_token >= 0.0) first_token_.observe(times.first_token);
}

void Metrics::scored(const engine::ReplyStatistics& statistics, const ReplyTimes& times) {
  const std::lock_guard lock(mutex_);
  ++scored_;
  prompt_tokens_ += count(statistics.prompt_tokens);
  cached_tokens_ += count(statistics.cached_tokens);
  observe(times);
}

void Metrics::finished(const engine::ReplyStatistics& statistics, const ReplyTimes& times) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += count(statistics.prompt_tokens);
  cached_tokens_ += count(statistics.cached_tokens);
  reply_tokens_ += count(statistics.reply_tokens);
  running_tokens_ -= count(statistics.reply_tokens);
  rounds_ += count(statistics.rounds);
  drafted_ += count(statistics.drafted);
  accepted_ += count(statistics.accepted);
  observe(times);
  decode_.observe(statistics.decode_seconds);
  prefill_.observe(statistics.prefill_seconds);
}

void Metrics::disconnected() {
  const std::lock_guard lock(mutex_);
  ++disconnections_;
}

void Metrics::replied(const std::string& label, int status) {
  const std::lock_guard lock(mutex_);
  ++replies_[{label.empty() ? "none" : label, status}];
}

std::string Metrics::text(const engine::EngineStatus& status, size_t connections) const {
  std::string out;
  const auto gauge = [&](auto value, const char* name, const char* mirror, const char* help) {
    write_value(out, "gauge", static_cast<double>(value), name, mirror, help);
  };
  const auto counter = [&](uint64_t value, const char* name, const char* mirror, const char* help) {
    write_value(out, "counter", static_cast<double>(value), name, mirror, help);
  };
  gauge(status.running, "requests_running", "num_requests_running", "Requests that prefill or decode.");
  gauge(status.waiting, "requests_waiting", "num_requests_waiting", "Requests that wait for a place.");
  gauge(status.lanes, "requests_running_max", "", "Requests that can run at once.");
  gauge(connections, "connections", "", "Open connections.");
  const std::lock_guard lock(mutex_);
  counter(prompt_tokens_, "prompt_tokens_total", "prompt_tokens_total", "Prompt tokens of finished requests.");
  counter(reply_tokens_, "generation_tokens_total", "generation_tokens_total", "Reply tokens of finished requests.");
  gauge(running_tokens_, "generation_tokens_running", "", "Tokens of replies that still run.");
  counter(cached_tokens_, "prompt_tokens_cached_total", "", "Prompt tokens taken from kept states.");
  counter(rounds_, "decode_rounds_total", "", "Rounds of finished requests.");
  counter(drafted_, "mtp_drafted_total", "spec_decode_num_draft_tokens_total", "Drafted tokens, all drafters.");
  counter(accepted_, "mtp_accepted_total", "spec_decode_num_accepted_tokens_total", "Accepted drafts, all drafters.");
  counter(scored_, "decisions_total", "", "Requests for decisions that were answered; they generate nothing.");
  counter(disconnections_, "client_disconnections_total", "", "Clients that left before their reply ended.");
  if (!replies_.empty()) {
    write_head(out, "tensorfold:requests_total", "counter", "HTTP replies by key label.");
    for (const auto& [key, value] : replies_) {
      out += fmt::format("tensorfold:requests_total{{key=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, value);
    }
  }
  const auto histogram = [&](const Histogram& values, const char* name, const char* mirror, const char* help) {
    values.write(out, std::string("tensorfold:") + name, help);
    if (*mirror != '\0') values.write(out, std::string("vllm:") + mirror, help);
  };
  histogram(latency_, "request_latency_seconds", "e2e_request_latency_seconds", "Arrival to the end of the reply.");
  histogram(first_token_, "time_to_first_token_seconds", "time_to_first_token_seconds", "Arrival to the first token.");
  histogram(decode_, "request_decode_seconds", "request_decode_time_seconds", "Time of decoding.");
  histogram(prefill_, "request_prefill_seconds", "request_prefill_time_seconds", "Time of the prompt.");
  return out;
}

}  // namespace tensorfold::server
