// What a request may force upon its reply, as the engine's constraint: the end of a think block at a token count, and
// the opening of a tool call. Both are functions of the reply's own tokens alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/constraint.h"
#include "text/tokenizer.h"

namespace tensorfold::server {

/// A vocabulary's tokens by the bytes they add, added tokens left out; made once a model.
class TokensByBytes {
 public:
  TokensByBytes() = default;
  explicit TokensByBytes(const text::Tokenizer& tokenizer);
  /// The token of exactly these bytes, or -1.
  [[nodiscard]] int32_t find(std::string_view bytes) const;
  /// Appends every token whose bytes begin with `prefix`.
  void append_with_prefix(std::string_view prefix, std::vector<int32_t>& tokens) const;
  /// The bytes of a token; empty for one that is not here.
  [[nodiscard]] std::string_view bytes_of(int32_t token) const;

 private:
  std::vector<std::pair<std::string, int32_t>> sorted_;
  std::vector<int32_t> places_;  ///< by id: index into sorted_, or -1
};

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

/// Forces `opening`, then one of `names`; what follows is free, also within the token that ends the name, so that the
/// model may write the token it always writes there. `tokens` outlives the constraint.
std::unique_ptr<engine::Constraint> call_gate(CallGate gate, const TokensByBytes& tokens);

/// All of them at once: the first that forces a token wins, masks are intersected.
std::unique_ptr<engine::Constraint> all_of(std::vector<std::unique_ptr<engine::Constraint>> parts);

}  // namespace tensorfold::server
