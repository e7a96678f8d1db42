// A run of prompt text together with where it came from.
#pragma once

#include <string>

namespace tensorfold::text {

/// Text of one origin. A prompt is a list of pieces; their texts joined are the prompt. The tokenizer reads control
/// tokens (added tokens such as a turn marker) only out of trusted pieces, so that a user cannot forge a turn.
struct TextPiece {
  std::string text;      ///< UTF-8
  bool trusted = false;  ///< true: written by the chat template; false: came from the request

  friend bool operator==(const TextPiece&, const TextPiece&) = default;
};

}  // namespace tensorfold::text
