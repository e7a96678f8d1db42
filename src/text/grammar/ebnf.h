// Grammars as users write them: GBNF (llama.cpp, vLLM: `root ::= ...`) and Lark's notation (`start: ...`).
#pragma once

#include <string_view>

#include "text/grammar/expression.h"

namespace tensorfold::text::grammar {

/// The root is the rule `root`, else `start`, else the first one. A rule that begins with itself is read as a repeat.
/// Error invalid_request with line and column: what is malformed, an unknown rule, and what cannot be enforced
/// (Lark's %ignore, templates, look-around in patterns).
RuleSet ebnf_rules(std::string_view text);

}  // namespace tensorfold::text::grammar
