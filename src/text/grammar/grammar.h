// The kinds of grammar that a request can ask for, compiled.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/grammar/automaton.h"

namespace tensorfold::text::grammar {

// All throw Error(invalid_request) with what cannot be enforced, and where.

/// `blanks`: whether there may be any between the tokens of the JSON.
Automaton compile_json_schema(const nlohmann::ordered_json& schema, bool blanks = true);
/// Any JSON object; any JSON value.
Automaton compile_json_object(bool blanks = true);
Automaton compile_json_value(bool blanks = true);
/// The whole text matches the pattern.
Automaton compile_regex(std::string_view pattern);
/// One of the texts.
Automaton compile_choice(const std::vector<std::string>& texts);
/// GBNF or Lark's notation.
Automaton compile_ebnf(std::string_view text);

}  // namespace tensorfold::text::grammar
