// Template source to tokens, as Jinja2's lexer does with trim_blocks and lstrip_blocks on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::text::jinja {

enum class TokenKind {
  data,            ///< text outside of tags
  variable_begin,  ///< {{
  variable_end,    ///< }}
  block_begin,     ///< {%
  block_end,       ///< %}
  name,
  string,
  integer,
  floating,
  op,  ///< an operator or a bracket; its text says which
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;  ///< for strings the decoded content, for numbers the digits without underscores
  std::size_t line = 1;
  std::size_t column = 1;
};

/// How messages name a token.
std::string describe(const Token& token);

/// Throws Error(invalid_request) that names line and column.
std::vector<Token> tokenize(std::string_view source);

/// The error of a template that cannot be read.
[[noreturn]] void syntax_error(std::size_t line, std::size_t column, std::string_view message);

}  // namespace tensorfold::text::jinja
