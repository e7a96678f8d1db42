#include "engine/sequence.h"

#include <algorithm>

namespace tensorfold::engine {
namespace {

TokenLogprobs logprobs_of(const backend::Drawn& drawn) {
  TokenLogprobs result{.token = drawn.token, .logprob = drawn.logprob, .top = {}};
  for (int32_t i = 0; i < drawn.ranked; ++i) {
    const backend::RankedToken& ranked = drawn.top[static_cast<size_t>(i)];
    result.top.emplace_back(ranked.token, ranked.logprob);
  }
  return result;
}

/// The first child of `row` that holds `token`, or -1.
int32_t child_with(const SequenceWindow& window, int32_t row, int32_t token) {
  for (int32_t child = row + 1; child < window.rows(); ++child) {
    if (window.parent(child) == row && window.tokens[static_cast<size_t>(child)] == token) return child;
  }
  return -1;
}

}  // namespace

Acceptance accept_window(const SequenceWindow& window, std::span<const backend::Drawn> drawn,
                         std::vector<TokenLogprobs>& logprobs) {
  Sequence& sequence = *window.sequence;
  const Request& request = sequence.request;
  Acceptance result;
  const int32_t sure = window.draws ? window.first_drawn + 1 : window.rows();
  for (int32_t row = 0; row < sure; ++row) result.path.push_back(row);
  if (!window.draws) return result;
  int32_t row = window.first_drawn;
  while (true) {
    const backend::Drawn& draw = drawn[static_cast<size_t>(row - window.first_drawn)];
    sequence.tokens.push_back(draw.token);
    ++result.emitted;
    if (request.top_logprobs >= 0) logprobs.push_back(logprobs_of(draw));
    if (sequence.has_penalties()) sequence.counts.add_reply(draw.token);
    sequence.constraint.commit(std::span(&draw.token, 1));
    const bool ends =
        std::find(request.end_tokens.begin(), request.end_tokens.end(), draw.token) != request.end_tokens.end();
    if (!sequence.constraint.error().empty()) {
      result.finished = FinishReason::failed;
    } else if (ends || sequence.constraint.finished()) {
      result.finished = FinishReason::stop;
    } else if (sequence.reply_left() <= 0) {
      result.finished = FinishReason::length;
    }
    if (result.finished) return result;
    row = child_with(window, row, draw.token);
    if (row < 0) return result;
    result.path.push_back(row);
  }
}

}  // namespace tensorfold::engine
