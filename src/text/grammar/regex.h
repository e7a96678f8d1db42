// Regular expressions as grammars: the dialect that JSON Schema (ECMA-262) and Python share, as far as it is regular.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "text/grammar/expression.h"

namespace tensorfold::text::grammar {

struct RegexUse {
  /// False: the pattern is the whole text. True: it may stand anywhere in the text unless anchors say otherwise.
  bool search = false;
  /// How a character of a set is written; as itself if empty.
  std::function<Expr(const CharacterSet&)> write;
  /// Bounds on the text's characters, which hold beside the pattern.
  uint32_t least = 0;
  uint32_t most = unbounded;
};

/// The texts that match. Bounds that the pattern does not imply become rules of `rules`. Error invalid_request with the
/// place of what is malformed or not regular: look-around, back-references, word borders, possessive repeats, flags,
/// anchors inside, Unicode properties.
Expr regex(std::string_view pattern, const RegexUse& use, RuleSet& rules);

}  // namespace tensorfold::text::grammar
