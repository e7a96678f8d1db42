#include "text/grammar/ebnf_lexer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "text/hex_digit.h"

namespace tensorfold::text::grammar {
namespace {

bool is_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text), is_lark_(text.find("::=") == std::string_view::npos) {
    if (!is_valid_utf8(text)) fail(ErrorKind::invalid_request, "the grammar is not UTF-8");
  }

  std::vector<EbnfToken> tokens() {
    std::vector<EbnfToken> result;
    while (true) {
      const bool begins_line = skip();
      EbnfToken token = next();
      token.begins_line = begins_line || result.empty();
      result.push_back(std::move(token));
      if (result.back().kind == EbnfToken::Kind::end) return result;
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { refuse_ebnf(text_, at_, what); }
  [[nodiscard]] char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  /// Blanks and comments; true when a line ended among them.
  bool skip() {
    bool ended = false;
    while (at_ < text_.size()) {
      const char c = peek();
      if (c == '\n' || c == '\r') ended = true;
      if (c == '#' || (c == '/' && peek(1) == '/')) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else {
        break;
      }
    }
    return ended;
  }

  EbnfToken next() {
    EbnfToken token;
    token.position = at_;
    if (at_ == text_.size()) return token;
    const char c = peek();
    if (is_name_letter(c) && c != '-') {
      token.kind = EbnfToken::Kind::name;
      while (is_name_letter(peek())) token.text += text_[at_++];
      // "a->b" is Lark's alias, not a name with hyphens.
      if (token.text.back() == '-' && peek() == '>') {
        token.text.pop_back();
        --at_;
      }
    } else if (c == '"' || c == '\'') {
      token.kind = EbnfToken::Kind::literal;
      token.text = quoted(c);
      token.ignores_case = flag();
    } else if (c == '/') {
      token.kind = EbnfToken::Kind::pattern;
      token.text = pattern();
      token.ignores_case = flag();
    } else if (c == '[' && !is_lark_) {
      token.kind = EbnfToken::Kind::characters;
      token.text = bracket();
    } else if (c == '%') {
      token.kind = EbnfToken::Kind::directive;
      const size_t end = std::min(text_.find('\n', at_), text_.size());
      token.text = text_.substr(at_, end - at_);
      at_ = end;
    } else if (c == ':') {
      token.kind = EbnfToken::Kind::define;
      at_ += text_.substr(at_, 3) == "::=" ? 3 : 1;
    } else {
      token.kind = EbnfToken::Kind::symbol;
      const bool pair = text_.substr(at_, 2) == "->" || text_.substr(at_, 2) == "..";
      token.text = text_.substr(at_, pair ? 2 : 1);
      at_ += token.text.size();
      if (std::string_view("()[]|*+?{},.~!->..;").find(token.text) == std::string_view::npos) {
        at_ = token.position;
        refuse("unexpected character");
      }
    }
    return token;
  }

  bool flag() {
    if (peek() != 'i' || is_name_letter(peek(1))) return false;
    ++at_;
    return true;
  }

  char32_t hex(size_t digits) {
    char32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const int digit = hex_digit(peek());
      if (digit < 0) refuse("malformed escape");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  std::string quoted(char quote) {
    const size_t start = at_++;
    std::string value;
    while (peek() != quote) {
      if (at_ >= text_.size() || peek() == '\n') {
        at_ = start;
        refuse("a literal without an end");
      }
      if (peek() != '\\') {
        value += text_[at_++];
        continue;
      }
      ++at_;
      const char escape = peek();
      ++at_;
      switch (escape) {
        case 'n':
          value += '\n';
          break;
        case 't':
          value += '\t';
          break;
        case 'r':
          value += '\r';
          break;
        case 'f':
          value += '\f';
          break;
        case 'b':
          value += '\b';
          break;
        case 'x':
          append_utf8(value, hex(2));
          break;
        case 'u':
          append_utf8(value, hex(4));
          break;
        case 'U':
          append_utf8(value, hex(8));
          break;
        case '\0':
          at_ = start;
          refuse("a literal without an end");
        default:
          value += escape;
      }
    }
    ++at_;
    return value;
  }

  std::string pattern() {
    const size_t start = at_++;
    std::string value;
    bool in_class = false;
    while (peek() != '/' || in_class) {
      if (at_ >= text_.size() || peek() == '\n') {
        at_ = start;
        refuse("a pattern without an end");
      }
      if (peek() == '[') in_class = true;
      if (peek() == ']') in_class = false;
      if (peek() == '\\' && at_ + 1 < text_.size()) {
        if (peek(1) != '/') value += '\\';
        ++at_;
      }
      value += text_[at_++];
    }
    ++at_;
    return value;
  }

  /// A class of characters. In Lark's notation brackets are optional groups.
  std::string bracket() {
    const size_t start = at_;
    for (++at_; peek() != ']'; ++at_) {
      if (at_ >= text_.size() || peek() == '\n') {
        at_ = start;
        refuse("a class of characters without an end");
      }
      if (peek() == '\\') ++at_;
    }
    ++at_;
    return std::string(text_.substr(start, at_ - start));
  }

  std::string_view text_;
  bool is_lark_;
  size_t at_ = 0;
};

}  // namespace

std::vector<EbnfToken> ebnf_tokens(std::string_view text) { return Lexer(text).tokens(); }

void refuse_ebnf(std::string_view text, size_t position, const std::string& what) {
  const std::string_view before = text.substr(0, position);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t start = before.rfind('\n');
  const size_t column = position - (start == std::string_view::npos ? 0 : start + 1) + 1;
  fail(ErrorKind::invalid_request, "line {}, column {}: {}", line, column, what);
}

}  // namespace tensorfold::text::grammar
