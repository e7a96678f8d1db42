// Tokens to a syntax tree, with Jinja2's grammar and the tags that chat templates have: break, continue, generation.
#pragma once

#include <string_view>

#include "text/jinja/syntax_tree.h"

namespace tensorfold::text::jinja {

/// Throws Error(invalid_request) that names line and column.
Body parse(std::string_view source);

}  // namespace tensorfold::text::jinja
