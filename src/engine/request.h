// A request as the engine sees it (token ids in, token ids out) and what it reports back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/draw.h"
#include "engine/constraint.h"

namespace tensorfold::engine {

enum class Priority { foreground, background };

/// Why a reply ended.
enum class FinishReason {
  stop,       ///< an end token, a satisfied constraint, or Reply::stop
  length,     ///< max_tokens or the context
  cancelled,  ///< the caller went away
  failed,     ///< see ReplyResult::error
};

/// A drawn token's log-probability and its strongest rivals (only when asked for).
struct TokenLogprobs {
  int32_t token = 0;
  float logprob = 0.0F;
  std::vector<std::pair<int32_t, float>> top;
};

/// Counters of one reply.
struct ReplyStatistics {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  ///< prompt tokens taken from a kept prefix
  int32_t reply_tokens = 0;
  int32_t rounds = 0;
  int32_t drafted = 0;
  int32_t accepted = 0;
  std::map<std::string, std::pair<int32_t, int32_t>> by_drafter;  ///< name -> drafted, accepted
  double queue_seconds = 0.0;
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
};

struct ReplyResult {
  FinishReason reason = FinishReason::stop;
  std::string error;
  ReplyStatistics statistics;
};

/// What to generate. `prompt` must not be empty; prompt + max_tokens must fit the context (Engine::submit checks).
struct Request {
  std::vector<int32_t> prompt;
  /// Leading prompt tokens that end a block worth keeping (system block, start of the last user message), ascending.
  std::vector<int32_t> snapshot_hints;
  /// Leading prompt tokens of the system block, which other conversations share; one of snapshot_hints. 0: none.
  int32_t system_tokens = 0;
  backend::SamplingSettings sampling;
  float repetition_penalty = 1.0F;
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  std::vector<backend::LogitBias> logit_bias;
  int32_t max_tokens = 0;
  std::vector<int32_t> end_tokens;  ///< empty with ignore_eos
  bool draft = true;
  Priority priority = Priority::foreground;
  int32_t top_logprobs = -1;
  std::shared_ptr<Constraint> constraint;

  /// Called on the engine's thread with the tokens a round delivered, in order; must return at once. Returning false
  /// ends the reply with FinishReason::stop after these tokens (stop strings).
  std::function<bool(std::span<const int32_t> tokens, std::span<const TokenLogprobs> logprobs)> on_tokens;
  /// Called once, on the engine's thread, after the last on_tokens.
  std::function<void(const ReplyResult&)> on_finish;
};

}  // namespace tensorfold::engine
