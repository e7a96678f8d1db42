// What a request may force upon its reply, as the engine's constraint: the end of a think block at a token count, and
// the opening of a tool call. Both are functions of the reply's own tokens alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/constraint.h"
#include "text/tokenizer.h"

namespace tensorfold::server {

/// Ids of tokens by the bytes they add; made once a model.
using TokensByBytes = std::unordered_map<std::string, int32_t>;
TokensByBytes tokens_by_bytes(const text::Tokenizer& tokenizer);

/// A reply that is still thinking when its `budget`-th token is chosen gets `close` from there on. `think_end`: the
/// token after which it does not think any more. budget >= 1, `close` not empty.
std::unique_ptr<engine::Constraint> thinking_budget(int32_t budget, std::vector<int32_t> close, int32_t think_end);

/// The beginning of a call that must be made.
struct CallGate {
  int32_t think_end = -1;  ///< >= 0: the gate begins after this token, and `after_thinking` follows it
  std::vector<int32_t> after_thinking;
  std::vector<int32_t> opening;    ///< the opener and what stands between it and the name
  std::vector<std::string> names;  ///< each with the character that ends it
};

/// Forces `opening`, then one of `names`; what follows is free. `tokens` outlives the constraint.
std::unique_ptr<engine::Constraint> call_gate(CallGate gate, const TokensByBytes& tokens);

/// All of them at once: the first that forces a token wins, masks are intersected.
std::unique_ptr<engine::Constraint> all_of(std::vector<std::unique_ptr<engine::Constraint>> parts);

}  // namespace tensorfold::server
