#include "text/tokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <array>

#include <pcre2.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/unicode.h"

namespace tensorfold::text {
namespace {

// Members of \w in Oniguruma with Unicode: Alphabetic, marks, decimal digits, connectors. Outside a class it also takes
// the superscripts and fractions of Latin-1.
constexpr std::string_view word_members =
    R"(\p{L}\p{M}\p{Nl}\p{Nd}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

std::string word_class(bool negated) {
  return (negated ? "[^" : "[") + std::string(word_members) + R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}])";
}

// PCRE2 reads \p{Han} as the characters used with Han (Script_Extensions), Oniguruma as those that are Han (Script).
bool is_script(std::string_view name) {
  const std::string pattern = "\\p{sc:" + std::string(name) + "}";
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                   &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

[[noreturn]] void refuse(std::string_view pattern, std::string_view what) {
  std::size_t shown = std::min<std::size_t>(pattern.size(), 200);
  while (shown > 0 && shown < pattern.size() && (static_cast<unsigned char>(pattern[shown]) & 0xC0U) == 0x80U) --shown;
  fail(ErrorKind::unsupported, "tokenizer.json: the regular expression '{}{}' {}", pattern.substr(0, shown),
       shown < pattern.size() ? "…" : "", what);
}

// Rewrites what Oniguruma and PCRE2 read differently, and refuses what cannot be rewritten simply.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (position_ < pattern_.size()) {
      const char c = pattern_[position_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else if (c == '[') {
        open_class();
      } else if (c == '}' && position_ + 1 < pattern_.size() && pattern_[position_ + 1] == '+') {
        refuse(pattern_, "repeats a counted repeat ('}+'), which is not supported");
      } else {
        copy(1);
      }
    }
    return std::move(result_);
  }

 private:
  void copy(std::size_t count) {
    result_.append(pattern_.substr(position_, count));
    position_ += count;
  }

  void open_class() {
    in_class_ = true;
    copy(1);
    if (position_ < pattern_.size() && pattern_[position_] == '^') copy(1);
    if (position_ < pattern_.size() && pattern_[position_] == ']') refuse(pattern_, "has an empty character class");
  }

  void class_character(char c) {
    if (c == ']') {
      in_class_ = false;
    } else if (c == '[') {
      if (pattern_.substr(position_, 2) == "[:") {
        const std::size_t end = pattern_.find(":]", position_ + 2);
        if (end == std::string_view::npos) refuse(pattern_, "has an unfinished character class");
        copy(end + 2 - position_);
        return;
      }
      refuse(pattern_, "has a character class inside a character class, which is not supported");
    } else if (c == '&' && pattern_.substr(position_, 2) == "&&") {
      refuse(pattern_, "intersects character classes ('&&'), which is not supported");
    }
    copy(1);
  }

  void escape() {
    if (position_ + 1 >= pattern_.size()) refuse(pattern_, "ends in a backslash");
    const char c = pattern_[position_ + 1];
    if (c == 'w') {
      result_ += in_class_ ? std::string(word_members) : word_class(false);
    } else if (c == 'h') {
      result_ += in_class_ ? "0-9a-fA-F" : "[0-9a-fA-F]";
    } else if (in_class_ && (c == 'W' || c == 'H')) {
      refuse(pattern_, "negates a shorthand inside a character class, which is not supported");
    } else if (c == 'W') {
      result_ += word_class(true);
    } else if (c == 'H') {
      result_ += "[^0-9a-fA-F]";
    } else if (!in_class_ && (c == 'b' || c == 'B')) {
      const std::string inside = word_class(false);
      const bool border = c == 'b';
      result_ += fmt::format("(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", inside, border ? '!' : '=', border ? '=' : '!');
    } else if ((c == 'p' || c == 'P' || c == 'x') && pattern_.substr(position_ + 2).starts_with('{')) {
      braced_escape(c);
      return;
    } else {
      copy(2);
      return;
    }
    position_ += 2;
  }

  // \p{...}, \P{...} or \x{...}.
  void braced_escape(char kind) {
    const std::size_t end = pattern_.find('}', position_);
    if (end == std::string_view::npos) refuse(pattern_, "has an unfinished escape");
    std::string_view name = pattern_.substr(position_ + 3, end - position_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    if (kind != 'x' && name.size() > 2 && is_script(name)) {
      result_ += fmt::format("\\{}{{{}sc:{}}}", kind, negated ? "^" : "", name);
      position_ = end + 1;
    } else {
      copy(end + 1 - position_);
    }
  }

  std::string_view pattern_;
  std::size_t position_ = 0;
  bool in_class_ = false;
  std::string result_;
};

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// The interpreter's limits, for subjects that outgrow the JIT's 32 KiB stack: memory and steps are bounded, the C stack
// is not used.
constexpr std::uint32_t step_limit = 200'000'000;
constexpr std::uint32_t heap_limit_kib = 512 * 1024;

}  // namespace

struct Regex::Code {
  explicit Code(pcre2_code* compiled) : code(compiled), jit(pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
  bool jit;
};

namespace {

// Matching of one subject, with the memory that needs.
class Search {
 public:
  Search(const pcre2_code* code, bool jit, std::string_view subject)
      : code_(code), jit_(jit), subject_(subject), data_(pcre2_match_data_create(1, nullptr)) {
    if (data_ == nullptr) fail(ErrorKind::capacity, "out of memory for a regular expression");
  }

  // Finds the first match at or after `start` and leaves its bounds in begin and end. False if there is none.
  bool find(std::size_t start) {
    const auto* text = reinterpret_cast<PCRE2_SPTR>(subject_.data());
    int code = PCRE2_ERROR_JIT_STACKLIMIT;
    if (jit_) code = pcre2_jit_match(code_, text, subject_.size(), start, PCRE2_NO_UTF_CHECK, data_.get(), nullptr);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT) {
      code = pcre2_match(code_, text, subject_.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data_.get(), limits());
    }
    if (code == PCRE2_ERROR_NOMATCH) return false;
    if (code < 0) {
      std::array<PCRE2_UCHAR, 256> message{};
      pcre2_get_error_message(code, message.data(), message.size());
      fail(ErrorKind::unsupported, "a regular expression of tokenizer.json gave up on this text: {}",
           reinterpret_cast<const char*>(message.data()));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data_.get());
    begin = bounds[0];
    end = bounds[1];
    return true;
  }

  std::size_t begin = 0;
  std::size_t end = 0;

 private:
  pcre2_match_context* limits() {
    if (limits_ == nullptr) {
      limits_.reset(pcre2_match_context_create(nullptr));
      pcre2_set_match_limit(limits_.get(), step_limit);
      pcre2_set_depth_limit(limits_.get(), step_limit);
      pcre2_set_heap_limit(limits_.get(), heap_limit_kib);
    }
    return limits_.get();
  }

  const pcre2_code* code_;
  bool jit_;
  std::string_view subject_;
  std::unique_ptr<pcre2_match_data, MatchDataDeleter> data_;
  std::unique_ptr<pcre2_match_context, MatchContextDeleter> limits_;
};

}  // namespace

Regex::Regex(std::string_view pattern) : pattern_(pattern) {
  const std::string translated = Translator(pattern).run();
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Ruby syntax: ^ and $ match at every line, a dot stops at newlines.
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    refuse(pattern, fmt::format("cannot be compiled: {}", reinterpret_cast<const char*>(message.data())));
  }
  code_ = std::make_shared<const Code>(code);
}

void Regex::cut(std::string_view subject, std::vector<RegexStretch>& out) const {
  out.clear();
  if (subject.empty()) {
    out.push_back({0, 0, false});
    return;
  }
  Search search(code_->code, code_->jit, subject);
  std::size_t done = 0;
  std::optional<std::size_t> last_end;
  for (std::size_t start = 0; start <= subject.size() && search.find(start);) {
    if (search.begin == search.end && last_end == search.end) {
      // An empty match right behind the last match is no match: look on from the next character.
      if (start == subject.size()) break;
      next_code_point(subject, start);
      continue;
    }
    last_end = start = search.end;
    if (done != search.begin) out.push_back({done, search.begin, false});
    out.push_back({search.begin, search.end, true});
    done = search.end;
  }
  if (done != subject.size()) out.push_back({done, subject.size(), false});
}

std::string Regex::escape(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-&~#").find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

std::optional<std::string> regex_subject(std::string_view text) {
  if (!needs_regex_stand_ins(text)) return std::nullopt;
  std::string result;
  result.reserve(text.size());
  for (std::size_t position = 0; position < text.size();)
    append_utf8(result, regex_stand_in(next_code_point(text, position)));
  check(result.size() == text.size(), "stand-ins keep the length");
  return result;
}

}  // namespace tensorfold::text
