// A regular expression as a tree.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/grammar/character_set.h"

namespace tensorfold::text::grammar {

struct RegexNode {
  enum class Kind { set, sequence, choice, repeat, begin, end };
  Kind kind = Kind::sequence;  ///< without parts: the empty text
  CharacterSet set;
  std::vector<RegexNode> parts;
  uint32_t least = 0;
  uint32_t most = 0;
};

/// Error invalid_request: what is wrong and at which byte.
RegexNode parse_regex(std::string_view pattern);

}  // namespace tensorfold::text::grammar
