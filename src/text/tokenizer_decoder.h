// The `decoder` of tokenizer.json: turns token strings back into text, one token at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_json.h"
#include "text/tokenizer_regex.h"

namespace tensorfold::text {

/// What a decoder does to each token by itself.
struct DecoderReplace {
  std::optional<Regex> regex;  ///< if absent, `pattern` is looked for literally
  std::string pattern;
  std::string content;
};
struct DecoderStrip {
  std::string content;       ///< one character
  std::size_t at_start = 0;  ///< how many of it go at the start
  std::size_t at_end = 0;    ///< how many of it go at the end
};
struct DecoderMetaspace {
  std::string replacement;
  bool strips_first = false;  ///< the first token loses its markers instead of turning them into spaces
};

/// A decoder as data. Steps apply in the order byte level, or: replacements, metaspace, byte fallback, strip of each
/// token, strip of the joined text.
struct Decoder {
  bool byte_level = false;
  bool joins_with_spaces = false;  ///< there is no decoder at all: tokens are joined with spaces
  std::vector<DecoderReplace> replacements;
  std::optional<DecoderMetaspace> metaspace;
  bool byte_fallback = false;
  std::optional<DecoderStrip> token_strip;
  std::optional<DecoderStrip> text_strip;
};

/// Builds the decoder that `value` describes (null: none). Knows ByteLevel, ByteFallback, Replace, Fuse, Strip,
/// Metaspace and Sequences of these in the usual orders; anything else is Error unsupported.
Decoder make_decoder(const JsonValue* value);

/// The bytes that one token contributes: for a byte token its byte, otherwise its text after the per-token steps.
/// `first`: whether it is the first token of a text.
std::string decode_token(const Decoder& decoder, std::string_view token, bool first);

/// The byte of a token written <0xNN>, if byte fallback is on and it is one.
std::optional<unsigned char> fallback_byte(const Decoder& decoder, std::string_view token);

/// The state of decoding one text. What push() and finish() return, joined, is the decoding of all tokens at once; no
/// returned piece ends inside a character.
class DecoderState {
 public:
  explicit DecoderState(const Decoder& decoder) : decoder_(&decoder) {}

  /// Text that the next token makes certain.
  std::string push(std::string_view token);
  /// The rest; the state is then as new.
  std::string finish();

 private:
  std::string push_byte_level(std::string_view token);
  std::string take_fallback_bytes();
  std::string strip_text(std::string text);

  const Decoder* decoder_;
  bool first_ = true;
  std::string pending_;  // byte level: the unfinished character; byte fallback: the unfinished run of bytes
  std::size_t stripped_at_start_ = 0;
  bool start_done_ = false;
  std::string held_;  // characters at the end of the text that may have to be stripped
};

}  // namespace tensorfold::text
