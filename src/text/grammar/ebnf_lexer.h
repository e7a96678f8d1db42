// Words of a written grammar.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::text::grammar {

struct EbnfToken {
  enum class Kind { name, define, literal, pattern, characters, symbol, directive, end };
  Kind kind = Kind::end;
  std::string text;           ///< of a literal: its characters; of a pattern: between the slashes; [...] as written
  bool ignores_case = false;  ///< literal or pattern with the flag i
  size_t position = 0;        ///< in bytes
  bool begins_line = false;
};

/// Comments (# and //) fall away. The last token is the end. Error invalid_request with line and column.
std::vector<EbnfToken> ebnf_tokens(std::string_view text);

/// "line 3, column 5: what".
[[noreturn]] void refuse_ebnf(std::string_view text, size_t position, const std::string& what);

}  // namespace tensorfold::text::grammar
