#include "text/tokenizer_decoder.h"

#include "base/error.h"
#include "base/utf8.h"
#include "text/hex_digit.h"
#include "text/tokenizer_byte_level.h"

namespace tensorfold::text {
namespace {

constexpr int deepest_nesting = 32;

// Reads a tree of decoders into the flat form, in order, refusing orders that the flat form cannot express.
class Builder {
 public:
  void add(const JsonValue& value, int depth) {
    const std::string_view type = string_member(value, "type", "decoder");
    if (depth > deepest_nesting) fail(ErrorKind::corrupt_file, "tokenizer.json: decoder sequences are nested too deep");
    if (type == "Sequence") {
      for (const JsonValue& step : array_member(value, "decoders", "decoder Sequence").GetArray()) add(step, depth + 1);
      return;
    }
    if (decoder_.byte_level) refuse_order(type);
    if (type == "ByteLevel") {
      if (any_) refuse_order(type);
      decoder_.byte_level = true;
    } else if (type == "Replace") {
      add_replace(value);
    } else if (type == "ByteFallback") {
      if (fused_ || decoder_.byte_fallback || decoder_.token_strip) refuse_order(type);
      decoder_.byte_fallback = true;
    } else if (type == "Fuse") {
      fused_ = true;
    } else if (type == "Strip") {
      add_strip(value);
    } else if (type == "Metaspace") {
      add_metaspace(value);
    } else {
      fail(ErrorKind::unsupported, "tokenizer.json: the decoder '{}' is not supported", type);
    }
    any_ = true;
  }

  Decoder finish() { return std::move(decoder_); }

 private:
  [[noreturn]] static void refuse_order(std::string_view type) {
    fail(ErrorKind::unsupported, "tokenizer.json: the decoder '{}' at this place of a Sequence is not supported", type);
  }

  void add_replace(const JsonValue& value) {
    constexpr std::string_view where = "decoder Replace";
    if (fused_ || decoder_.byte_fallback || decoder_.metaspace || decoder_.token_strip) refuse_order("Replace");
    const JsonValue& pattern = object_member(value, "pattern", where);
    DecoderReplace step;
    step.content = string_member(value, "content", where);
    if (find_member(pattern, "String") != nullptr) {
      step.pattern = string_member(pattern, "String", where);
    } else {
      step.regex.emplace(string_member(pattern, "Regex", where));
    }
    decoder_.replacements.push_back(std::move(step));
  }

  void add_strip(const JsonValue& value) {
    constexpr std::string_view where = "decoder Strip";
    DecoderStrip strip;
    append_utf8(strip.content, character_member(value, "content", where));
    strip.at_start = count_member_or(value, "start", 0, where);
    strip.at_end = count_member_or(value, "stop", 0, where);
    std::optional<DecoderStrip>& place = fused_ ? decoder_.text_strip : decoder_.token_strip;
    if (place) refuse_order("Strip");
    place = std::move(strip);
  }

  void add_metaspace(const JsonValue& value) {
    constexpr std::string_view where = "decoder Metaspace";
    if (fused_ || decoder_.byte_fallback || decoder_.metaspace || decoder_.token_strip) refuse_order("Metaspace");
    DecoderMetaspace step;
    append_utf8(step.replacement, character_member(value, "replacement", where));
    const bool prefix = bool_member_or(value, "add_prefix_space", true, where);
    step.strips_first = string_member_or(value, "prepend_scheme", prefix ? "always" : "never", where) != "never";
    decoder_.metaspace = std::move(step);
  }

  Decoder decoder_;
  bool fused_ = false;
  bool any_ = false;
};

std::string replace_all(std::string text, std::string_view pattern, std::string_view content) {
  if (pattern.empty()) return text;
  for (std::size_t found = text.find(pattern); found != std::string::npos;
       found = text.find(pattern, found + content.size())) {
    text.replace(found, pattern.size(), content);
  }
  return text;
}

std::string apply_replace(const DecoderReplace& step, std::string text) {
  if (!step.regex) return replace_all(std::move(text), step.pattern, step.content);
  std::vector<RegexStretch> stretches;
  const std::optional<std::string> subject = regex_subject(text);
  step.regex->cut(subject ? *subject : text, stretches);
  std::string result;
  for (const RegexStretch& stretch : stretches) {
    result += stretch.is_match ? step.content : text.substr(stretch.begin, stretch.end - stretch.begin);
  }
  return result;
}

// Removes up to `most` copies of `character` from the start of `text`; returns how many.
std::size_t strip_start(std::string& text, std::string_view character, std::size_t most) {
  std::size_t count = 0;
  while (count < most && std::string_view(text).substr(count * character.size()).starts_with(character)) ++count;
  text.erase(0, count * character.size());
  return count;
}

void strip_end(std::string& text, std::string_view character, std::size_t most) {
  for (std::size_t i = 0; i < most && text.ends_with(character); ++i) text.resize(text.size() - character.size());
}

}  // namespace

Decoder make_decoder(const JsonValue* value) {
  if (value == nullptr) {
    Decoder none;
    none.joins_with_spaces = true;
    return none;
  }
  Builder builder;
  builder.add(*value, 0);
  return builder.finish();
}

std::optional<unsigned char> fallback_byte(const Decoder& decoder, std::string_view token) {
  if (!decoder.byte_fallback || token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<unsigned char>(high * 16 + low);
}

std::string decode_token(const Decoder& decoder, std::string_view token, bool first) {
  if (decoder.byte_level) return from_byte_level(token);
  std::string text(token);
  for (const DecoderReplace& step : decoder.replacements) text = apply_replace(step, std::move(text));
  if (decoder.metaspace) {
    const bool strips = first && decoder.metaspace->strips_first;
    text = replace_all(std::move(text), decoder.metaspace->replacement, strips ? "" : " ");
  }
  if (const std::optional<unsigned char> byte = fallback_byte(decoder, text)) {
    return std::string(1, static_cast<char>(*byte));
  }
  if (decoder.token_strip) {
    strip_start(text, decoder.token_strip->content, decoder.token_strip->at_start);
    strip_end(text, decoder.token_strip->content, decoder.token_strip->at_end);
  }
  return text;
}

std::string DecoderState::push_byte_level(std::string_view token) {
  pending_ += from_byte_level(token);
  const std::size_t unfinished = incomplete_utf8_suffix(pending_);
  std::string certain = replace_invalid_utf8(std::string_view(pending_).substr(0, pending_.size() - unfinished));
  pending_.erase(0, pending_.size() - unfinished);
  return certain;
}

// A run of byte tokens is text if all of it is UTF-8; otherwise each of its bytes is one U+FFFD.
std::string DecoderState::take_fallback_bytes() {
  std::string result;
  if (is_valid_utf8(pending_)) {
    result = pending_;
  } else {
    for (std::size_t i = 0; i < pending_.size(); ++i) result += replacement_utf8;
  }
  pending_.clear();
  return result;
}

std::string DecoderState::push(std::string_view token) {
  if (decoder_->byte_level) return push_byte_level(token);
  const bool first = first_;
  first_ = false;
  std::string text = decode_token(*decoder_, token, first);
  if (decoder_->joins_with_spaces) return first ? text : ' ' + text;
  if (decoder_->byte_fallback) {
    // Replacements may make or unmake a byte token, so the decoded form decides, as in the library.
    std::string replaced(token);
    for (const DecoderReplace& step : decoder_->replacements) replaced = apply_replace(step, std::move(replaced));
    if (fallback_byte(*decoder_, replaced)) {
      pending_ += text;
      return {};
    }
    text = take_fallback_bytes() + text;
  }
  return strip_text(std::move(text));
}

std::string DecoderState::strip_text(std::string text) {
  if (!decoder_->text_strip) return text;
  const DecoderStrip& strip = *decoder_->text_strip;
  if (!start_done_ && !text.empty()) {
    stripped_at_start_ += strip_start(text, strip.content, strip.at_start - stripped_at_start_);
    start_done_ = stripped_at_start_ == strip.at_start || !text.empty();
  }
  if (strip.at_end == 0) return text;
  text.insert(0, held_);
  std::size_t certain = text.size();
  for (std::size_t i = 0; i < strip.at_end && std::string_view(text).substr(0, certain).ends_with(strip.content); ++i) {
    certain -= strip.content.size();
  }
  held_ = text.substr(certain);
  text.resize(certain);
  return text;
}

std::string DecoderState::finish() {
  std::string rest;
  if (decoder_->byte_level) {
    rest = replace_invalid_utf8(pending_);
  } else if (decoder_->byte_fallback && !pending_.empty()) {
    rest = strip_text(take_fallback_bytes());
  }
  *this = DecoderState(*decoder_);
  return rest;
}

}  // namespace tensorfold::text
