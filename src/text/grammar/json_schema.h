// JSON Schema as a grammar (draft 2020-12, and what drafts 4 to 7 write differently).
//
// Every text of the grammar is valid by the schema. The grammar may be narrower than the schema where clients expect
// it to be: an object's members come in the order of `properties`, then the others; an object that names properties
// has no others unless additionalProperties or patternProperties say so; keywords without a `type` mean the type that
// they are for; numbers have at most 18 digits before the point; at most 32 blanks stand between two tokens. oneOf is
// read as anyOf. Whatever could make a text invalid is enforced or refused, with the path of the keyword.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "text/grammar/expression.h"

namespace tensorfold::text::grammar {

/// Error invalid_request: "at PATH: what", PATH like #/properties/a/pattern.
/// `blanks`: whether there may be any between tokens.
RuleSet json_schema_rules(const nlohmann::ordered_json& schema, bool blanks = true);

/// Throws that error.
[[noreturn]] void refuse_schema(const std::string& path, const std::string& what);

}  // namespace tensorfold::text::grammar
