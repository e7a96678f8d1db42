// What the front ends (JSON Schema, regular expressions, EBNF) build: rules whose bodies are expressions over
// characters and other rules.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/character_set.h"

namespace tensorfold::text::grammar {

struct Expression;
using Expr = std::shared_ptr<const Expression>;

inline constexpr uint32_t unbounded = std::numeric_limits<uint32_t>::max();

struct Expression {
  enum class Kind {
    never,       ///< matches nothing, not even the empty text
    literals,    ///< one of `texts` (bytes); the empty text is one literal
    characters,  ///< one character of `set`
    sequence,    ///< all of `parts`
    choice,      ///< one of `parts`
    repeat,      ///< parts[0], `least` to `most` times
    rule,        ///< the rule of number `rule`
  };
  Kind kind = Kind::never;
  std::vector<std::string> texts;
  CharacterSet set;
  std::vector<Expr> parts;
  uint32_t least = 0;
  uint32_t most = 0;
  uint32_t rule = 0;
};

Expr never();
Expr empty();
Expr literal(std::string_view text);
Expr literals(std::vector<std::string> texts);
Expr characters(CharacterSet set);
/// Flattened; an empty part falls away, a part that never matches makes the whole never match.
Expr sequence(std::vector<Expr> parts);
/// Flattened; parts that never match fall away.
Expr choice(std::vector<Expr> parts);
Expr repeat(Expr part, uint32_t least, uint32_t most);
Expr optional(Expr part);
Expr rule(uint32_t number);

struct Rule {
  std::string name;  ///< for messages
  Expr body;
};

/// A whole grammar before it is compiled.
struct RuleSet {
  std::vector<Rule> rules;
  uint32_t root = 0;
  /// The rule of one character inside a JSON string, plain or escaped, if the grammar has it: vocabularies keep masks
  /// for it.
  std::optional<uint32_t> json_character;
  bool json_blanks = true;  ///< whether JSON may have blanks between its tokens

  /// A rule to be filled later.
  uint32_t declare(std::string name);
  uint32_t add(std::string name, Expr body);
};

}  // namespace tensorfold::text::grammar
