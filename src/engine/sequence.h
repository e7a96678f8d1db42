// A request's life inside the engine: its tokens, its place in the caches, its counters.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache_pool.h"
#include "engine/constraint_guard.h"
#include "engine/request.h"
#include "engine/token_counts.h"

namespace tensorfold::engine {

using Clock = std::chrono::steady_clock;

/// Prompt and reply are one list of tokens; what lies behind lane.committed is still to be fed. The last token is the
/// pending one: its row is drawn. A sequence with one token left decodes, one with more fills. That is also how a
/// sequence that gave its place to another comes back: its reply is fed again like a prompt, with the same bits.
struct Sequence {
  uint64_t id = 0;
  Request request;
  std::vector<int32_t> tokens;
  CacheLane lane;
  int32_t lane_index = -1;  ///< -1: waiting
  ConstraintGuard constraint;
  TokenCounts counts;  ///< kept only when the request has penalties
  ReplyStatistics statistics;
  std::vector<int32_t> snapshot_points;  ///< positions where the state is to be kept, ascending
  int32_t passed_over = 0;               ///< rounds in which others filled before it
  Clock::time_point submitted;
  Clock::time_point held_until;   ///< when waiting for its prefix from disk ends; unset: it never waited
  uint64_t held_at = 0;           ///< disk reads that had ended when it was last found waiting
  Clock::time_point started;      ///< first admission
  Clock::time_point first_token;  ///< when the prompt was done
  std::atomic<bool> cancelled = false;

  [[nodiscard]] int32_t prompt_size() const { return static_cast<int32_t>(request.prompt.size()); }
  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  [[nodiscard]] int32_t reply_size() const { return size() - prompt_size(); }
  [[nodiscard]] int32_t reply_left() const { return request.max_tokens - reply_size(); }
  /// Rows that must be fed before the next draw, the pending token's included.
  [[nodiscard]] int32_t rows_left() const { return size() - lane.committed; }
  [[nodiscard]] bool decodes() const { return rows_left() == 1; }
  [[nodiscard]] std::span<const int32_t> reply() const {
    return std::span<const int32_t>(tokens).subspan(request.prompt.size());
  }
  [[nodiscard]] bool has_penalties() const {
    return request.repetition_penalty != 1.0F || request.frequency_penalty != 0.0F || request.presence_penalty != 0.0F;
  }
};

/// The rows of one sequence in a round: a stretch of its tokens, or its pending token with drafts below it.
struct SequenceWindow {
  Sequence* sequence = nullptr;
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;  ///< empty: a chain
  bool draws = false;            ///< false: a prompt chunk that does not reach the pending token
  int32_t first_drawn = 0;       ///< rows from here on are drawn (a chunk: its last row; a decode window: all)
  int32_t drafter = -1;          ///< who proposed the drafts
  size_t first_draw = 0;         ///< index of the first drawn row among the round's draws
  bool decode = false;           ///< the pending token and its drafts; else a stretch of a prompt
  [[nodiscard]] int32_t rows() const { return static_cast<int32_t>(tokens.size()); }
  [[nodiscard]] int32_t drawn_rows() const { return draws ? rows() - first_drawn : 0; }
  [[nodiscard]] int32_t parent(int32_t row) const {
    return parents.empty() ? row - 1 : parents[static_cast<size_t>(row)];
  }
};

/// What a round's draws made of a window.
struct Acceptance {
  std::vector<int32_t> path;  ///< rows that stay, in path order (a chunk: all)
  int32_t emitted = 0;        ///< tokens appended to the sequence
  std::optional<FinishReason> finished;
};

/// Walks the path of drawn tokens that equal the drafts, appends each drawn token to the sequence and to its
/// constraint, and stops at an end token, a finished constraint or the token limit. `drawn`: the window's drawn rows.
/// `logprobs` receives one entry an emitted token when the request wants them.
Acceptance accept_window(const SequenceWindow& window, std::span<const backend::Drawn> drawn,
                         std::vector<TokenLogprobs>& logprobs);

}  // namespace tensorfold::engine
