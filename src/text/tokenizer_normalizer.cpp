#include "text/tokenizer_normalizer.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer_regex.h"
#include "text/unicode.h"
#include "text/unicode_normalization.h"

namespace tensorfold::text {
namespace {

constexpr int deepest_nesting = 32;

// Real normalizers at most triple a text.
void check_growth(std::size_t before, std::size_t after) {
  constexpr std::size_t most_times = 32;
  constexpr std::size_t slack = 1 << 16;
  if (after > most_times * before + slack) {
    fail(ErrorKind::corrupt_file, "tokenizer.json: the normalizer makes a text more than {} times as long", most_times);
  }
}

// Writes the next version of a text from stretches of the old one.
class Rewriter {
 public:
  explicit Rewriter(const MarkedText& source) : source_(source) { result_.tracked = source.tracked; }

  void copy(std::size_t begin, std::size_t end) {
    result_.text.append(source_.text, begin, end - begin);
    if (source_.tracked) result_.trust.insert(result_.trust.end(), mark(begin), mark(end));
  }

  void replace(std::size_t begin, std::size_t end, std::string_view with) {
    result_.text += with;
    check_growth(source_.text.size(), result_.text.size());
    if (!source_.tracked) return;
    const bool all = std::all_of(mark(begin), mark(end), [](std::uint8_t flag) { return flag != 0; });
    result_.trust.resize(result_.text.size(), all ? 1 : 0);
  }

  MarkedText finish() { return std::move(result_); }

 private:
  std::vector<std::uint8_t>::const_iterator mark(std::size_t position) const {
    return source_.trust.begin() + static_cast<std::ptrdiff_t>(position);
  }

  const MarkedText& source_;
  MarkedText result_;
};

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(NormalizationForm form) : form_(form) {}
  void apply(MarkedText& text) const override { normalize(form_, text.text, text.tracked ? &text.trust : nullptr); }

 private:
  NormalizationForm form_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(MarkedText& text) const override {
    Rewriter rewriter(text);
    for (std::size_t position = 0; position < text.text.size();) {
      const std::size_t begin = position;
      next_code_point(text.text, position);
      rewriter.replace(begin, position, lower_case(std::string_view(text.text).substr(begin, position - begin)));
    }
    text = rewriter.finish();
  }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(MarkedText& text) const override {
    std::size_t begin = 0;
    std::size_t end = text.text.size();
    while (left_ && begin < end) {
      std::size_t next = begin;
      if (!is_whitespace(next_code_point(text.text, next))) break;
      begin = next;
    }
    while (right_ && begin < end) {
      const std::size_t previous = previous_code_point_start(text.text, end);
      std::size_t position = previous;
      if (!is_whitespace(next_code_point(text.text, position))) break;
      end = previous;
    }
    Rewriter rewriter(text);
    rewriter.copy(begin, end);
    text = rewriter.finish();
  }

 private:
  bool left_, right_;
};

class StripAccents final : public Normalizer {
 public:
  void apply(MarkedText& text) const override {
    Rewriter rewriter(text);
    for (std::size_t position = 0; position < text.text.size();) {
      const std::size_t begin = position;
      if (!is_accent(next_code_point(text.text, position))) rewriter.copy(begin, position);
    }
    text = rewriter.finish();
  }
};

class ReplaceString final : public Normalizer {
 public:
  ReplaceString(std::string_view pattern, std::string_view content) : pattern_(pattern), content_(content) {}
  void apply(MarkedText& text) const override {
    if (pattern_.empty()) return;
    std::size_t found = text.text.find(pattern_);
    if (found == std::string::npos) return;
    Rewriter rewriter(text);
    std::size_t done = 0;
    for (; found != std::string::npos; found = text.text.find(pattern_, done)) {
      rewriter.copy(done, found);
      done = found + pattern_.size();
      rewriter.replace(found, done, content_);
    }
    rewriter.copy(done, text.text.size());
    text = rewriter.finish();
  }

 private:
  std::string pattern_, content_;
};

class ReplaceRegex final : public Normalizer {
 public:
  ReplaceRegex(std::string_view pattern, std::string_view content) : regex_(pattern), content_(content) {}
  void apply(MarkedText& text) const override {
    const std::optional<std::string> subject = regex_subject(text.text);
    std::vector<RegexStretch> stretches;
    regex_.cut(subject ? *subject : text.text, stretches);
    Rewriter rewriter(text);
    for (const RegexStretch& stretch : stretches) {
      if (stretch.is_match) {
        rewriter.replace(stretch.begin, stretch.end, content_);
      } else {
        rewriter.copy(stretch.begin, stretch.end);
      }
    }
    text = rewriter.finish();
  }

 private:
  Regex regex_;
  std::string content_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string_view content) : content_(content) {}
  void apply(MarkedText& text) const override {
    if (text.text.empty()) return;
    Rewriter rewriter(text);
    rewriter.replace(0, 1, content_);
    rewriter.copy(0, text.text.size());
    text = rewriter.finish();
  }

 private:
  std::string content_;
};

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(MarkedText& text) const override {
    const std::size_t before = text.text.size();
    for (const auto& step : steps_) {
      step->apply(text);
      check_growth(before, text.text.size());
    }
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> steps_;
};

std::unique_ptr<const Normalizer> make(const JsonValue& value, int depth);

std::unique_ptr<const Normalizer> make_sequence(const JsonValue& value, int depth) {
  std::vector<std::unique_ptr<const Normalizer>> steps;
  for (const JsonValue& step : array_member(value, "normalizers", "normalizer Sequence").GetArray()) {
    steps.push_back(make(step, depth + 1));
  }
  return std::make_unique<Sequence>(std::move(steps));
}

std::unique_ptr<const Normalizer> make_replace(const JsonValue& value) {
  constexpr std::string_view where = "normalizer Replace";
  const JsonValue& pattern = object_member(value, "pattern", where);
  const std::string_view content = string_member(value, "content", where);
  if (find_member(pattern, "String") != nullptr) {
    return std::make_unique<ReplaceString>(string_member(pattern, "String", where), content);
  }
  return std::make_unique<ReplaceRegex>(string_member(pattern, "Regex", where), content);
}

std::unique_ptr<const Normalizer> make(const JsonValue& value, int depth) {
  const std::string_view type = string_member(value, "type", "normalizer");
  if (depth > deepest_nesting)
    fail(ErrorKind::corrupt_file, "tokenizer.json: normalizer sequences are nested too deep");
  if (type == "Sequence") return make_sequence(value, depth);
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalizationForm::nfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalizationForm::nfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalizationForm::nfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalizationForm::nfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Strip") {
    return std::make_unique<Strip>(bool_member_or(value, "strip_left", true, "normalizer Strip"),
                                   bool_member_or(value, "strip_right", true, "normalizer Strip"));
  }
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Replace") return make_replace(value);
  if (type == "Prepend") return std::make_unique<Prepend>(string_member(value, "prepend", "normalizer Prepend"));
  fail(ErrorKind::unsupported, "tokenizer.json: the normalizer '{}' is not supported", type);
}

}  // namespace

std::unique_ptr<const Normalizer> make_normalizer(const JsonValue* value) {
  return value == nullptr ? nullptr : make(*value, 0);
}

}  // namespace tensorfold::text
