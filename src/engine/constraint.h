// What may limit a reply token by token: grammars, thinking budgets, forced openers. The server fills it from `text`;
// the engine knows only this interface. Everything here is a pure function of the tokens of the reply's own path, so
// that constrained drafted = constrained serial.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tensorfold::engine {

/// One reply's constraint. `path` is always the reply tokens that follow the last commit() on the row's own path.
/// Called on the engine's thread only. What a call throws ends this reply with FinishReason::failed, and no other.
class Constraint {
 public:
  virtual ~Constraint() = default;
  /// The token that must come after `path`, or -1. A forced token is committed whatever the logits say.
  virtual int32_t forced(std::span<const int32_t> path) = 0;
  /// Fills one bit a token (set = allowed) for the token after `path`. False: everything is allowed, `bits` untouched.
  virtual bool mask(std::span<const int32_t> path, std::span<uint32_t> bits) = 0;
  /// How many of `drafts`, in order after `path`, the constraint can accept.
  virtual size_t accepts(std::span<const int32_t> path, std::span<const int32_t> drafts) = 0;
  /// These tokens now stand in the reply.
  virtual void commit(std::span<const int32_t> tokens) = 0;
  /// True when the reply must end after the committed tokens.
  [[nodiscard]] virtual bool finished() const = 0;
};

}  // namespace tensorfold::engine
