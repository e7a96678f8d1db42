// A grammar as a pushdown automaton over bytes: one small automaton a rule, with edges on bytes, calls of other rules
// and counted loops. Immutable; walked by Matcher.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/grammar/expression.h"

namespace tensorfold::text::grammar {

struct ByteEdge {
  uint8_t first;
  uint8_t last;  ///< inclusive
  uint32_t target;
};

struct CallEdge {
  uint32_t rule;
  uint32_t target;  ///< where to go on when the rule has ended
};

/// A state that runs `body` `least` to `most` times and then goes to `target`. The count lies on the stack.
struct Loop {
  uint32_t body;  ///< a rule
  uint32_t least;
  uint32_t most;
  uint32_t target;
};

/// A state without epsilon edges. A loop state has its loop and nothing else.
struct State {
  std::vector<ByteEdge> bytes;
  std::vector<CallEdge> calls;
  std::vector<uint32_t> loops;  ///< loop states entered from here with a count of 0
  int32_t loop = -1;            ///< index into Automaton::loops
  bool final = false;           ///< the rule may end here
  /// Nothing can follow within the rule: a call that returns here need not be remembered.
  [[nodiscard]] bool only_final() const { return final && bytes.empty() && calls.empty() && loops.empty(); }
};

struct Automaton {
  std::vector<State> states;
  std::vector<Loop> loops;
  std::vector<uint32_t> starts;  ///< first state of each rule
  uint32_t root = 0;
  /// Where the rule of one character of a JSON string starts, if the grammar has it.
  std::optional<uint32_t> json_character_start;
  /// Bytes that no edge tells apart have the same class.
  std::array<uint8_t, 256> byte_class{};
  uint32_t byte_classes = 0;
};

/// Compiles the rules. Every state kept can reach the end of its rule, so whatever the automaton has accepted can be
/// completed. Error invalid_request: a rule calls itself before it has read a byte (left recursion), nothing matches
/// at all, or the grammar is larger than the bounds on states allow.
Automaton compile(const RuleSet& rules);

}  // namespace tensorfold::text::grammar
