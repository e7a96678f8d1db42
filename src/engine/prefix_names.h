// Names of prefixes, and which positions of a prompt are worth keeping.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tensorfold::engine {

/// The name of a prefix: a digest of its tokens. Whoever finds something by name compares the tokens too.
using PrefixName = uint64_t;

/// names[n]: the name of the first n of `tokens`; tokens.size() + 1 entries.
std::vector<PrefixName> prefix_names(std::span<const int32_t> tokens);

/// Kept states of one conversation: at most so many, at least so many tokens apart.
constexpr int32_t most_states_a_conversation = 6;
constexpr int32_t least_state_gap = 256;

/// Positions of a prompt where the state is kept while it fills, ascending: the `hints` (system block, start of the
/// last user message), the prompt less its last token, and two between in the widest gap of a long prompt; each at
/// least least_state_gap behind the one before.
std::vector<int32_t> snapshot_points(int32_t prompt_tokens, std::span<const int32_t> hints);

}  // namespace tensorfold::engine
