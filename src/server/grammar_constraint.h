// A grammar as the engine's constraint: which part of a reply it holds for, and when the reply may end.
#pragma once

#include <memory>

#include "engine/constraint.h"
#include "server/reply_parts.h"
#include "text/grammar/matcher.h"

namespace tensorfold::server {

/// Inside reasoning everything is free but the end of the reply, and inside a call what GrammarPlacement::call leaves
/// free. The reply ends by itself where nothing may follow. What a function throws says that the vocabulary cannot
/// spell what the grammar asks for.
std::unique_ptr<engine::Constraint> grammar_constraint(std::shared_ptr<text::grammar::Matcher> matcher,
                                                       GrammarPlacement placement);

}  // namespace tensorfold::server
