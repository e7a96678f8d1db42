// How a tool call is held to its form: its opening and one of the offered names are forced, and the reply cannot end
// before the call is closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

/// The form of a call.
struct CallGate {
  int32_t think_end = -1;  ///< >= 0: the gate begins after this token, and `after_thinking` follows it
  std::vector<int32_t> after_thinking;
  std::vector<int32_t> opening;     ///< the opener and what stands between it and the name
  std::vector<std::string> names;   ///< each with the character that ends it
  std::string closer = {};          ///< what closes the call; empty: nothing is known to
  int32_t closer_token = -1;        ///< the control token that is the closer, if there is one
  std::vector<int32_t> end_tokens;  ///< refused until the call is closed
};

/// Sets a token's bit (bit t mod 32 of word t div 32), if there is such a token.
void allow_token(int32_t token, std::span<uint32_t> bits);
/// Sets every bit but those of `tokens`.
void allow_all_but(std::span<const int32_t> tokens, std::span<uint32_t> bits);

/// Where a reply stands in a call. Forces `opening`, then one of `names`; what follows is free, also within the token
/// that ends the name, so that the model may write the token it always writes there. Until the call is closed the reply
/// may not end, nor may it inside the thinking before. A value: a path is walked from a copy.
class CallGateState {
 public:
  /// `tokens` lives longer.
  CallGateState(std::shared_ptr<const CallGate> gate, const TokensByBytes& tokens);
  /// The token that must come, or -1.
  [[nodiscard]] int32_t forced() const;
  /// engine::Constraint::mask, where no token is forced.
  bool mask(std::span<uint32_t> bits) const;
  [[nodiscard]] bool allows(int32_t token) const;
  void advance(int32_t token);
  [[nodiscard]] bool closed() const { return place_ == Place::closed; }

 private:
  enum class Place { thinking, after_thinking, opening, name, arguments, closed };
  void enter(Place place);
  /// Names that begin with what was written.
  [[nodiscard]] bool fits(const std::string& name) const { return name.compare(0, written_.size(), written_) == 0; }
  /// Tokens that write on in some name, or to its end and beyond.
  [[nodiscard]] std::vector<int32_t> name_tokens() const;
  void advance_name(int32_t token);
  void advance_arguments(int32_t token);
  void find_closer();

  std::shared_ptr<const CallGate> gate_;
  const TokensByBytes* tokens_;
  Place place_;
  size_t step_ = 0;
  std::string written_;  ///< of the name; then the last bytes, in which the closer may begin
};

}  // namespace tensorfold::server
