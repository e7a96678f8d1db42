// What a request may force upon its reply, as the engine's constraint: the end of a think block at a token count, and
// a tool call. Both are functions of the reply's own tokens alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/constraint.h"
#include "server/call_gate.h"

namespace tensorfold::server {

/// A reply that is still thinking when its `budget`-th token is chosen gets `close` from there on. `think_end`: the
/// token after which it does not think any more. budget >= 1, `close` not empty.
std::unique_ptr<engine::Constraint> thinking_budget(int32_t budget, std::vector<int32_t> close, int32_t think_end);

/// A call that must be made (CallGateState). `tokens` outlives the constraint.
std::unique_ptr<engine::Constraint> call_gate(CallGate gate, const TokensByBytes& tokens);

/// All of them at once: the first that forces a token wins, masks are intersected.
std::unique_ptr<engine::Constraint> all_of(std::vector<std::unique_ptr<engine::Constraint>> parts);

}  // namespace tensorfold::server
