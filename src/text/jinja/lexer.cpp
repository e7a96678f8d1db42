#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/utf8.h"
#include "text/jinja/marked_text.h"
#include "text/jinja/unicode.h"

namespace tensorfold::text::jinja {

namespace {

/// Unix line ends, and without the last one: what Jinja2 keeps of a source.
std::string normalise_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text.push_back(source[i]);
    }
  }
  return text;
}

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

bool is_digit_of_base(char byte, int base) {
  if (base == 16) return is_digit(byte) || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
  return byte >= '0' && byte < '0' + base;
}

std::string_view trim_end(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!is_space(next_code_point(text, at))) end = at;
  }
  return text.substr(0, end);
}

bool all_space(std::string_view text) { return trim_end(text).empty(); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalise_newlines(source)) {
    if (source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = find_tag();
      if (tag == std::string::npos) {
        add(TokenKind::data, source_.substr(at_));
        at_ = source_.size();
        break;
      }
      lex_tag(tag);
    }
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] bool starts_with(std::string_view text) const { return source_.compare(at_, text.size(), text) == 0; }

  [[nodiscard]] std::size_t find_tag() const {
    for (std::size_t at = source_.find('{', at_); at != std::string::npos; at = source_.find('{', at + 1)) {
      const char next = at + 1 < source_.size() ? source_[at + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string::npos;
  }

  [[noreturn]] void fail_here(std::string_view message) {
    update_position();
    syntax_error(line_, column_, message);
  }

  /// Counts lines up to at_.
  void update_position() {
    for (; counted_ < at_; ++counted_) {
      if (source_[counted_] == '\n') {
        ++line_;
        column_ = 1;
      } else {
        ++column_;
      }
    }
  }

  void add(TokenKind kind, std::string text) {
    if (kind == TokenKind::data && text.empty()) return;
    update_position();
    tokens_.push_back({kind, std::move(text), line_, column_});
  }

  void skip_space() {
    while (at_ < source_.size()) {
      std::size_t next = at_;
      if (!is_space(next_code_point(source_, next))) return;
      at_ = next;
    }
  }

  /// The text before a tag at `tag` after what its sign and lstrip_blocks take away.
  std::string_view text_before(std::size_t tag, char sign, bool is_variable) const {
    const std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    if (sign == '-') return trim_end(text);
    if (sign == '+' || is_variable) return text;
    const std::size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_starting_) return text;
    const std::size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    return all_space(text.substr(line_begin)) ? text.substr(0, line_begin) : text;
  }

  void lex_tag(std::size_t tag) {
    const char kind = source_[tag + 1];
    const char sign =
        tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+') ? source_[tag + 2] : '\0';
    add(TokenKind::data, std::string(text_before(tag, sign, kind == '{')));
    at_ = tag;
    const std::size_t begin_size = sign == '\0' ? 2 : 3;
    if (kind == '#') {
      at_ += begin_size;
      lex_comment();
    } else if (kind == '%' && lex_raw(begin_size)) {
      return;
    } else {
      add(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin, source_.substr(at_, begin_size));
      at_ += begin_size;
      lex_code(kind == '{');
    }
  }

  void lex_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_here("missing end of comment tag");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    at_ = end + 2;
    finish_tag(sign);
  }

  /// After an end marker: '-' takes the white space that follows, '+' nothing, otherwise one line end goes
  /// (trim_blocks).
  void finish_tag(char sign, bool trims_newline = true) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && trims_newline && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  /// At a block tag: if it is `raw`, takes everything up to `endraw` as data.
  bool lex_raw(std::size_t begin_size) {
    const std::size_t tag = at_;
    at_ += begin_size;
    skip_space();
    const bool named = starts_with("raw");
    if (named) {
      at_ += 3;
      skip_space();
    }
    const bool stripped = named && starts_with("-%}");
    if (!named || (!stripped && !starts_with("%}"))) {
      at_ = tag;
      return false;
    }
    at_ += stripped ? 3 : 2;
    finish_tag(stripped ? '-' : '+');
    lex_raw_content();
    return true;
  }

  void lex_raw_content() {
    for (std::size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      const std::size_t start = at_;
      const char sign =
          tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+') ? source_[tag + 2] : '\0';
      const std::string text(text_before(tag, sign, false));
      at_ = tag + (sign == '\0' ? 2 : 3);
      skip_space();
      if (starts_with("endraw")) {
        at_ += 6;
        skip_space();
        const char end_sign = starts_with("-%}") ? '-' : starts_with("+%}") ? '+' : '\0';
        if (end_sign != '\0') ++at_;
        if (starts_with("%}")) {
          at_ += 2;
          add(TokenKind::data, text);
          finish_tag(end_sign);
          return;
        }
      }
      at_ = start;
    }
    fail_here("missing end of raw directive");
  }

  void lex_code(bool is_variable) {
    std::string brackets;
    while (true) {
      skip_space();
      if (at_ >= source_.size()) {
        fail_here(is_variable ? "unexpected end of template, expected 'end of print statement'"
                              : "unexpected end of template, expected 'end of statement block'");
      }
      if (brackets.empty() && lex_end(is_variable)) return;
      lex_code_token(brackets);
    }
  }

  bool lex_end(bool is_variable) {
    const std::string_view marker = is_variable ? "}}" : "%}";
    const bool signed_end =
        (source_[at_] == '-' || (source_[at_] == '+' && !is_variable)) && source_.compare(at_ + 1, 2, marker) == 0;
    if (!signed_end && !starts_with(marker)) return false;
    const char sign = signed_end ? source_[at_] : '\0';
    add(is_variable ? TokenKind::variable_end : TokenKind::block_end, std::string(marker));
    at_ += signed_end ? 3 : 2;
    finish_tag(sign, !is_variable);
    return true;
  }

  void lex_code_token(std::string& brackets) {
    const char byte = source_[at_];
    if (byte == '"' || byte == '\'') {
      lex_string(byte);
    } else if (is_digit(byte)) {
      lex_number();
    } else if (byte == '_' || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
               static_cast<unsigned char>(byte) >= 0x80) {
      lex_name();
    } else {
      lex_operator(brackets);
    }
  }

  void lex_name() {
    std::size_t end = at_;
    while (end < source_.size()) {
      std::size_t next = end;
      const char32_t code_point = next_code_point(source_, next);
      const bool word = code_point < 0x80
                            ? (code_point == '_' || is_digit(static_cast<char>(code_point)) ||
                               (code_point >= 'a' && code_point <= 'z') || (code_point >= 'A' && code_point <= 'Z'))
                            : !is_space(code_point);
      if (!word) break;
      end = next;
    }
    add(TokenKind::name, source_.substr(at_, end - at_));
    at_ = end;
  }

  /// The end of digits with single underscores between them, from `begin` on; `begin` if there are none.
  [[nodiscard]] std::size_t digits_end(std::size_t begin, int base) const {
    std::size_t end = begin;
    while (end < source_.size() &&
           (is_digit_of_base(source_[end], base) || (source_[end] == '_' && end > begin && end + 1 < source_.size() &&
                                                     is_digit_of_base(source_[end + 1], base)))) {
      ++end;
    }
    return end;
  }

  void add_number(TokenKind kind, std::size_t end) {
    std::string digits = source_.substr(at_, end - at_);
    std::erase(digits, '_');
    add(kind, std::move(digits));
    at_ = end;
  }

  void lex_number() {
    const auto at = [&](std::size_t index) { return index < source_.size() ? source_[index] : '\0'; };
    const std::size_t whole = digits_end(at_, 10);
    std::size_t end = whole;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot) {
      if (at(end) == '.' && is_digit(at(end + 1))) end = digits_end(end + 1, 10);
      if (at(end) == 'e' || at(end) == 'E') {
        const std::size_t exponent = end + (at(end + 1) == '+' || at(end + 1) == '-' ? 2 : 1);
        if (is_digit(at(exponent))) end = digits_end(exponent, 10);
      }
      if (end != whole) return add_number(TokenKind::floating, end);
    }
    if (source_[at_] != '0') return add_number(TokenKind::integer, whole);
    const char letter = static_cast<char>(at(at_ + 1) | 0x20);
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (base != 0) {
      const std::size_t first = at_ + 2 + (at(at_ + 2) == '_' ? 1 : 0);
      const std::size_t last = digits_end(first, base);
      if (last > first) return add_number(TokenKind::integer, last);
    }
    std::size_t zeros = at_ + 1;
    while (at(zeros) == '0' || (at(zeros) == '_' && at(zeros + 1) == '0')) ++zeros;
    add_number(TokenKind::integer, zeros);
  }

  void lex_string(char quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_here(std::string("unexpected char '") + quote + "'");
    add(TokenKind::string, decode_escapes(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    at_ = end + 1;
  }

  /// Python's escapes in a string literal.
  std::string decode_escapes(std::string_view raw) {
    std::string text;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\' || i + 1 >= raw.size()) {
        text.push_back(raw[i]);
        continue;
      }
      decode_escape(raw, ++i, text);
    }
    return text;
  }

  /// The escape whose letter is raw[i]; leaves i at its last byte.
  void decode_escape(std::string_view raw, std::size_t& i, std::string& text) {
    constexpr std::string_view letters = "ntrabfv\\'\"";
    constexpr std::string_view values = "\n\t\r\a\b\f\v\\'\"";
    const char letter = raw[i];
    if (letter == '\n') return;
    if (const std::size_t known = letters.find(letter); known != std::string_view::npos) {
      text.push_back(values[known]);
    } else if (letter >= '0' && letter <= '7') {
      char32_t code_point = 0;
      const std::size_t stop = std::min(raw.size(), i + 3);
      while (i < stop && raw[i] >= '0' && raw[i] <= '7')
        code_point = code_point * 8 + static_cast<char32_t>(raw[i++] - '0');
      --i;
      append_utf8(text, code_point);
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      const std::size_t count = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
      const std::string digits(raw.substr(i + 1, count));
      if (digits.size() != count ||
          !std::all_of(digits.begin(), digits.end(), [](char c) { return is_digit_of_base(c, 16); })) {
        fail_here("a string literal has a malformed escape");
      }
      append_utf8(text, static_cast<char32_t>(std::stoul(digits, nullptr, 16)));
      i += count;
    } else {
      text.push_back('\\');
      text.push_back(letter);
    }
  }

  void lex_operator(std::string& brackets) {
    static constexpr std::array<std::string_view, 26> operators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                                   "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                                   ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto found = std::find_if(operators.begin(), operators.end(), [&](auto text) { return starts_with(text); });
    if (found == operators.end()) fail_here(std::string("unexpected char '") + source_[at_] + "'");
    const char first = found->front();
    if (first == '(' || first == '[' || first == '{') {
      brackets.push_back(first == '(' ? ')' : first == '[' ? ']' : '}');
    } else if (first == ')' || first == ']' || first == '}') {
      if (brackets.empty()) fail_here(std::string("unexpected '") + first + "'");
      if (brackets.back() != first)
        fail_here(std::string("unexpected '") + first + "', expected '" + brackets.back() + "'");
      brackets.pop_back();
    }
    add(TokenKind::op, std::string(*found));
    at_ += found->size();
  }

  std::string source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::size_t counted_ = 0;
  std::size_t line_ = 1;
  std::size_t column_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::data:
      return "template data";
    case TokenKind::variable_begin:
      return "begin of print statement";
    case TokenKind::variable_end:
      return "end of print statement";
    case TokenKind::block_begin:
      return "begin of statement block";
    case TokenKind::block_end:
      return "end of statement block";
    case TokenKind::end:
      return "end of template";
    default:
      return token.text;
  }
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

void syntax_error(std::size_t line, std::size_t column, std::string_view message) {
  fail(ErrorKind::invalid_request, "chat template, line {}, column {}: {}", line, column, message);
}

}  // namespace tensorfold::text::jinja
