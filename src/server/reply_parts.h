// Which part of a reply under a grammar each of its tokens is. The constraint and the text pipeline read it alike, so
// what the grammar held is what the client gets.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/call_gate.h"

namespace tensorfold::server {

/// Where a grammar begins in a reply. Token ids; -1: there is no such token.
struct GrammarPlacement {
  bool starts_in_reasoning = false;  ///< the grammar begins behind `think_end`
  int32_t think_open = -1;           ///< may be the reply's first token; then the grammar begins behind `think_end`
  int32_t think_end = -1;
  int32_t blank_line = -1;          ///< may stand once behind `think_end`: it is no part of the answer
  int32_t call_opener = -1;         ///< may stand in place of the answer
  std::vector<int32_t> end_tokens;  ///< allowed exactly where the grammar accepts
  /// What a call must look like behind `call_opener`; null: anything may follow.
  std::shared_ptr<const CallGate> call = nullptr;
  const TokensByBytes* tokens = nullptr;  ///< with `call`; lives longer
};

enum class ReplyPart {
  reasoning,
  marker,  ///< around reasoning, and the blank line behind it: shown to nobody
  answer,
  call,  ///< the opener of a call in place of the answer, and everything behind it
};

/// Follows a reply's tokens, end tokens left out. A value: a path is walked from a copy.
class ReplyParts {
 public:
  /// `placement` lives longer.
  explicit ReplyParts(const GrammarPlacement& placement)
      : placement_(&placement), now_(placement.starts_in_reasoning ? ReplyPart::reasoning : ReplyPart::answer) {}

  /// The part that `token` is.
  ReplyPart step(int32_t token);
  /// The part that the next token is, unless it is a marker or opens a call.
  [[nodiscard]] ReplyPart now() const { return now_; }
  /// Whether the token that may come next: opens reasoning, is the blank line behind it, opens a call.
  [[nodiscard]] bool may_think() const { return now_ == ReplyPart::answer && first_ && placement_->think_open >= 0; }
  [[nodiscard]] bool may_be_blank() const {
    return now_ == ReplyPart::answer && behind_thinking_ && placement_->blank_line >= 0;
  }
  [[nodiscard]] bool may_call() const { return now_ == ReplyPart::answer && fresh_ && placement_->call_opener >= 0; }

 private:
  const GrammarPlacement* placement_;
  ReplyPart now_;
  bool first_ = true;             ///< nothing of the reply stands yet
  bool fresh_ = true;             ///< nothing of the answer stands yet
  bool behind_thinking_ = false;  ///< the last token closed the reasoning
};

}  // namespace tensorfold::server
