// A grammar as the engine's constraint: which part of a reply it holds for, and when the reply may end.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/constraint.h"
#include "text/grammar/matcher.h"

namespace tensorfold::server {

/// Where a grammar begins in a reply. Token ids; -1: there is no such token.
struct GrammarPlacement {
  bool starts_in_reasoning = false;  ///< the grammar begins behind `think_end`
  int32_t think_open = -1;           ///< may be the reply's first token; then the grammar begins behind `think_end`
  int32_t think_end = -1;
  int32_t blank_line = -1;          ///< may stand once behind `think_end`: it is no part of the answer
  int32_t call_opener = -1;         ///< may stand in place of the answer; what follows it is free
  std::vector<int32_t> end_tokens;  ///< allowed exactly where the grammar accepts
};

/// The reply ends by itself where nothing may follow. What a call throws says that the vocabulary cannot spell what
/// the grammar asks for.
std::unique_ptr<engine::Constraint> grammar_constraint(std::shared_ptr<text::grammar::Matcher> matcher,
                                                       GrammarPlacement placement);

}  // namespace tensorfold::server
