#include "text/tokenizer_pre_tokenizer.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer_regex.h"
#include "text/unicode.h"

namespace tensorfold::text {
namespace {

constexpr int deepest_nesting = 32;

// The pattern that GPT-2 split by; ByteLevel's `use_regex` asks for it.
constexpr std::string_view byte_level_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(std::string_view name) {
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  fail(ErrorKind::unsupported, "tokenizer.json: the split behavior '{}' is not supported", name);
}

WordSpan span_of(std::size_t base, const RegexStretch& stretch) {
  return {static_cast<std::uint32_t>(base + stretch.begin), static_cast<std::uint32_t>(base + stretch.end)};
}

// Joins the matches and gaps of one word as `behavior` says; empty results are dropped, as the library does.
void join(std::vector<RegexStretch>& stretches, Behavior behavior, std::size_t base, std::vector<WordSpan>& out) {
  const std::size_t first = out.size();
  const auto push = [&](const RegexStretch& stretch) { out.push_back(span_of(base, stretch)); };
  bool previous_match = false;
  switch (behavior) {
    case Behavior::removed:
      for (const RegexStretch& stretch : stretches) {
        if (!stretch.is_match) push(stretch);
      }
      break;
    case Behavior::isolated:
      for (const RegexStretch& stretch : stretches) push(stretch);
      break;
    case Behavior::contiguous:
    case Behavior::merged_with_previous:
      for (const RegexStretch& stretch : stretches) {
        const bool merges =
            behavior == Behavior::contiguous ? stretch.is_match == previous_match : stretch.is_match && !previous_match;
        if (merges && out.size() > first) {
          out.back().end = span_of(base, stretch).end;
        } else {
          push(stretch);
        }
        previous_match = stretch.is_match;
      }
      break;
    case Behavior::merged_with_next:
      for (auto stretch = stretches.rbegin(); stretch != stretches.rend(); ++stretch) {
        if (stretch->is_match && !previous_match && out.size() > first) {
          out.back().begin = span_of(base, *stretch).begin;
        } else {
          push(*stretch);
        }
        previous_match = stretch->is_match;
      }
      std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
      break;
  }
  const auto is_empty = [](WordSpan word) { return word.begin == word.end; };
  out.erase(std::remove_if(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(), is_empty), out.end());
}

class SplitByRegex final : public PreTokenizer {
 public:
  SplitByRegex(std::string_view pattern, Behavior behavior, bool invert)
      : regex_(pattern), behavior_(behavior), invert_(invert) {}

  void apply(PreTokenizedText& text) const override {
    const std::string_view subject = text.subject();
    std::vector<WordSpan> result;
    result.reserve(std::max(text.words.size(), subject.size() / 4));
    std::vector<RegexStretch> stretches;
    for (const WordSpan word : text.words) {
      regex_.cut(subject.substr(word.begin, word.end - word.begin), stretches);
      if (invert_) {
        for (RegexStretch& stretch : stretches) stretch.is_match = !stretch.is_match;
      }
      join(stretches, behavior_, word.begin, result);
    }
    text.words = std::move(result);
  }

 private:
  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

// Splits where a property of single characters holds.
class SplitByCharacter final : public PreTokenizer {
 public:
  SplitByCharacter(std::function<bool(char32_t)> matches, Behavior behavior)
      : matches_(std::move(matches)), behavior_(behavior) {}

  void apply(PreTokenizedText& text) const override {
    std::vector<WordSpan> result;
    std::vector<RegexStretch> stretches;
    for (const WordSpan word : text.words) {
      cut(text.text().substr(word.begin, word.end - word.begin), stretches);
      join(stretches, behavior_, word.begin, result);
    }
    text.words = std::move(result);
  }

 private:
  void cut(std::string_view text, std::vector<RegexStretch>& out) const {
    out.clear();
    std::size_t done = 0;
    for (std::size_t position = 0; position < text.size();) {
      const std::size_t begin = position;
      if (!matches_(next_code_point(text, position))) continue;
      if (done != begin) out.push_back({done, begin, false});
      out.push_back({begin, position, true});
      done = position;
    }
    if (done != text.size()) out.push_back({done, text.size(), false});
  }

  std::function<bool(char32_t)> matches_;
  Behavior behavior_;
};

// Runs of word characters and runs of other visible characters; blanks are dropped.
class WhitespacePreTokenizer final : public PreTokenizer {
 public:
  void apply(PreTokenizedText& text) const override {
    std::vector<WordSpan> result;
    for (const WordSpan word : text.words) {
      int previous = 0;
      for (std::size_t position = word.begin; position < word.end;) {
        const auto begin = static_cast<std::uint32_t>(position);
        const char32_t point = next_code_point(text.text(), position);
        const int kind = is_word(point) ? 2 : is_whitespace(point) ? 0 : 1;
        const auto end = static_cast<std::uint32_t>(position);
        if (kind != 0 && kind == previous) {
          result.back().end = end;
        } else if (kind != 0) {
          result.push_back({begin, end});
        }
        previous = kind;
      }
    }
    text.words = std::move(result);
  }
};

// Puts a prefix before words that do not have it.
class PrefixWords final : public PreTokenizer {
 public:
  PrefixWords(std::string_view prefix, bool only_at_start) : prefix_(prefix), only_at_start_(only_at_start) {}

  void apply(PreTokenizedText& text) const override {
    std::string result;
    std::vector<WordSpan> words;
    for (const WordSpan word : text.words) {
      const std::string_view content = text.text().substr(word.begin, word.end - word.begin);
      const auto begin = static_cast<std::uint32_t>(result.size());
      const bool wanted = !only_at_start_ || (text.at_start() && word.begin == 0);
      if (wanted && !content.starts_with(prefix_)) result += prefix_;
      result += content;
      words.push_back({begin, static_cast<std::uint32_t>(result.size())});
    }
    text.replace_text(std::move(result), std::move(words));
  }

 private:
  std::string prefix_;
  bool only_at_start_;
};

// Writes a marker for each space inside the words.
class ReplaceSpaces final : public PreTokenizer {
 public:
  explicit ReplaceSpaces(std::string_view marker) : marker_(marker) {}

  void apply(PreTokenizedText& text) const override {
    std::string result;
    std::vector<WordSpan> words;
    for (const WordSpan word : text.words) {
      const auto begin = static_cast<std::uint32_t>(result.size());
      for (const char c : text.text().substr(word.begin, word.end - word.begin)) {
        if (c == ' ') {
          result += marker_;
        } else {
          result += c;
        }
      }
      words.push_back({begin, static_cast<std::uint32_t>(result.size())});
    }
    text.replace_text(std::move(result), std::move(words));
  }

 private:
  std::string marker_;
};

void add(const JsonValue& value, int depth, PreTokenizerPipeline& pipeline);

void add_split(const JsonValue& value, PreTokenizerPipeline& pipeline) {
  constexpr std::string_view where = "pre_tokenizer Split";
  const JsonValue& pattern = object_member(value, "pattern", where);
  const Behavior behavior = behavior_of(string_member(value, "behavior", where));
  const bool invert = bool_member_or(value, "invert", false, where);
  const std::string regex = find_member(pattern, "String") != nullptr
                                ? Regex::escape(string_member(pattern, "String", where))
                                : std::string(string_member(pattern, "Regex", where));
  if (regex.empty()) return;  // an empty pattern leaves every word whole
  pipeline.steps.push_back(std::make_unique<SplitByRegex>(regex, behavior, invert));
}

void add_byte_level(const JsonValue& value, PreTokenizerPipeline& pipeline) {
  constexpr std::string_view where = "pre_tokenizer ByteLevel";
  if (bool_member_or(value, "add_prefix_space", true, where)) {
    pipeline.steps.push_back(std::make_unique<PrefixWords>(" ", false));
  }
  if (bool_member_or(value, "use_regex", true, where)) {
    pipeline.steps.push_back(std::make_unique<SplitByRegex>(byte_level_pattern, Behavior::isolated, false));
  }
  pipeline.byte_level = true;
}

void add_metaspace(const JsonValue& value, PreTokenizerPipeline& pipeline) {
  constexpr std::string_view where = "pre_tokenizer Metaspace";
  std::string marker;
  append_utf8(marker, character_member(value, "replacement", where));
  const bool prefix = bool_member_or(value, "add_prefix_space", true, where);
  const std::string_view scheme = string_member_or(value, "prepend_scheme", prefix ? "always" : "never", where);
  if (scheme != "always" && scheme != "never" && scheme != "first") {
    fail(ErrorKind::unsupported, "tokenizer.json: the prepend_scheme '{}' is not supported", scheme);
  }
  pipeline.steps.push_back(std::make_unique<ReplaceSpaces>(marker));
  if (scheme != "never") pipeline.steps.push_back(std::make_unique<PrefixWords>(marker, scheme == "first"));
  if (bool_member_or(value, "split", true, where)) {
    pipeline.steps.push_back(std::make_unique<SplitByRegex>(Regex::escape(marker), Behavior::merged_with_next, false));
  }
}

void add_by_character(std::function<bool(char32_t)> matches, Behavior behavior, PreTokenizerPipeline& pipeline) {
  pipeline.steps.push_back(std::make_unique<SplitByCharacter>(std::move(matches), behavior));
}

void add_sequence(const JsonValue& value, int depth, PreTokenizerPipeline& pipeline) {
  if (depth > deepest_nesting) {
    fail(ErrorKind::corrupt_file, "tokenizer.json: pre_tokenizer sequences are nested too deep");
  }
  for (const JsonValue& step : array_member(value, "pretokenizers", "pre_tokenizer Sequence").GetArray()) {
    add(step, depth + 1, pipeline);
  }
}

void add(const JsonValue& value, int depth, PreTokenizerPipeline& pipeline) {
  const std::string_view type = string_member(value, "type", "pre_tokenizer");
  if (pipeline.byte_level) {
    fail(ErrorKind::unsupported, "tokenizer.json: the pre_tokenizer '{}' behind ByteLevel is not supported", type);
  }
  if (type == "Sequence") {
    add_sequence(value, depth, pipeline);
  } else if (type == "Split") {
    add_split(value, pipeline);
  } else if (type == "ByteLevel") {
    add_byte_level(value, pipeline);
  } else if (type == "Digits") {
    const bool single = bool_member_or(value, "individual_digits", false, "pre_tokenizer Digits");
    add_by_character(is_number, single ? Behavior::isolated : Behavior::contiguous, pipeline);
  } else if (type == "Metaspace") {
    add_metaspace(value, pipeline);
  } else if (type == "Punctuation") {
    const std::string_view behavior = string_member_or(value, "behavior", "Isolated", "pre_tokenizer Punctuation");
    add_by_character(is_punctuation, behavior_of(behavior), pipeline);
  } else if (type == "Whitespace") {
    pipeline.steps.push_back(std::make_unique<WhitespacePreTokenizer>());
  } else if (type == "WhitespaceSplit") {
    add_by_character(is_whitespace, Behavior::removed, pipeline);
  } else if (type == "BertPreTokenizer") {
    add_by_character(is_whitespace, Behavior::removed, pipeline);
    add_by_character(is_punctuation, Behavior::isolated, pipeline);
  } else if (type == "CharDelimiterSplit") {
    const char32_t delimiter = character_member(value, "delimiter", "pre_tokenizer CharDelimiterSplit");
    add_by_character([delimiter](char32_t point) { return point == delimiter; }, Behavior::removed, pipeline);
  } else {
    fail(ErrorKind::unsupported, "tokenizer.json: the pre_tokenizer '{}' is not supported", type);
  }
}

}  // namespace

PreTokenizedText::PreTokenizedText(std::string_view text, bool at_start) : text_(text), at_start_(at_start) {
  if (!text.empty()) words.push_back({0, static_cast<std::uint32_t>(text.size())});
}

std::string_view PreTokenizedText::subject() {
  if (!subject_known_) {
    subject_ = regex_subject(text_);
    subject_known_ = true;
  }
  return subject_ ? std::string_view(*subject_) : text_;
}

void PreTokenizedText::replace_text(std::string text, std::vector<WordSpan> new_words) {
  owned_ = std::move(text);
  text_ = owned_;
  words = std::move(new_words);
  subject_known_ = false;
}

PreTokenizerPipeline make_pre_tokenizer(const JsonValue* value) {
  PreTokenizerPipeline pipeline;
  if (value != nullptr) add(*value, 0, pipeline);
  return pipeline;
}

}  // namespace tensorfold::text
