// Counters for /metrics in Prometheus' text format, with vLLM's names beside ours.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "engine/request.h"

namespace tensorfold::server {

/// Seconds, counted in fixed buckets.
class Histogram {
 public:
  static constexpr std::array<double, 13> edges = {0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
  void observe(double seconds);
  void write(std::string& out, const std::string& name, const std::string& help) const;

 private:
  std::array<uint64_t, edges.size() + 1> counts_{};
  double sum_ = 0.0;
};

/// Times of one finished reply, in seconds.
struct ReplyTimes {
  double total = 0.0;        ///< arrival to end
  double first_token = 0.0;  ///< arrival to first token; negative: none came
};

/// Thread-safe.
class Metrics {
 public:
  /// More tokens of a running reply.
  void drawn(size_t tokens);
  /// Tokens told to drawn() of a reply that is not to count.
  void withdrawn(size_t tokens);
  /// A reply whose every token was told to drawn() has ended.
  void finished(const engine::ReplyStatistics& statistics, const ReplyTimes& times);
  /// A request was answered without generating anything.
  void scored(const engine::ReplyStatistics& statistics, const ReplyTimes& times);
  /// Reply tokens, those of running replies too.
  [[nodiscard]] uint64_t reply_tokens() const;
  void disconnected();
  /// A reply went out to the holder of this key label; empty: to someone without a valid key.
  void replied(const std::string& label, int status);
  /// The whole exposition. `connections`: open ones.
  [[nodiscard]] std::string text(const engine::EngineStatus& status, size_t connections) const;

 private:
  void observe(const ReplyTimes& times);
  mutable std::mutex mutex_;
  uint64_t prompt_tokens_ = 0;
  uint64_t reply_tokens_ = 0;    ///< of finished replies
  uint64_t running_tokens_ = 0;  ///< of the others
  uint64_t scored_ = 0;
  uint64_t cached_tokens_ = 0;
  uint64_t rounds_ = 0;
  uint64_t drafted_ = 0;
  uint64_t accepted_ = 0;
  uint64_t disconnections_ = 0;
  std::map<std::pair<std::string, int>, uint64_t> replies_;
  Histogram latency_;
  Histogram first_token_;
  Histogram decode_;
  Histogram prefill_;
};

}  // namespace tensorfold::server
