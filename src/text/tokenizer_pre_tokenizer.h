// The `pre_tokenizer` of tokenizer.json: cuts text into words.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_json.h"

namespace tensorfold::text {

/// A word: bytes [begin, end) of the text it was cut from.
struct WordSpan {
  std::uint32_t begin;
  std::uint32_t end;
};

/// A text on its way through the pre-tokenizers.
class PreTokenizedText {
 public:
  /// `text` must stay alive and be valid UTF-8 of less than 2 GiB. `at_start`: it begins the whole input.
  PreTokenizedText(std::string_view text, bool at_start);

  [[nodiscard]] std::string_view text() const { return text_; }
  /// The text as regular expressions see it (see regex_subject).
  [[nodiscard]] std::string_view subject();
  [[nodiscard]] bool at_start() const { return at_start_; }
  /// Exchanges the text for another, together with its words.
  void replace_text(std::string text, std::vector<WordSpan> words);

  std::vector<WordSpan> words;

 private:
  std::string_view text_;
  std::string owned_;
  std::optional<std::string> subject_;
  bool subject_known_ = false;
  bool at_start_;
};

/// One step that cuts words further or rewrites them. Immutable, safe to share between threads.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(PreTokenizedText& text) const = 0;
};

/// A whole pre-tokenizer: steps in order, then, for byte-level models, each byte stands for one symbol.
struct PreTokenizerPipeline {
  std::vector<std::unique_ptr<const PreTokenizer>> steps;
  bool byte_level = false;
};

/// Builds what `value` describes (null: one word). Knows Split, ByteLevel (as the last step), Digits, Metaspace,
/// Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit, BertPreTokenizer and Sequence; any other type is Error
/// unsupported with its name.
PreTokenizerPipeline make_pre_tokenizer(const JsonValue* value);

}  // namespace tensorfold::text
