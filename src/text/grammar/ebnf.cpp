#include "text/grammar/ebnf.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "text/grammar/ebnf_lexer.h"
#include "text/grammar/regex.h"

namespace tensorfold::text::grammar {
namespace {

using Kind = EbnfToken::Kind;

constexpr size_t deepest = 200;
constexpr uint32_t most_repeats = 100'000;

/// The terminals of Lark's common.lark that grammars import.
const std::map<std::string, std::string, std::less<>>& common_terminals() {
  static const std::map<std::string, std::string, std::less<>> patterns = {
      {"DIGIT", "[0-9]"},
      {"HEXDIGIT", "[a-fA-F0-9]"},
      {"INT", "[0-9]+"},
      {"SIGNED_INT", "[+-]?[0-9]+"},
      {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
      {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
      {"NUMBER", "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
      {"SIGNED_NUMBER", "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
      {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
      {"LCASE_LETTER", "[a-z]"},
      {"UCASE_LETTER", "[A-Z]"},
      {"LETTER", "[a-zA-Z]"},
      {"WORD", "[a-zA-Z]+"},
      {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
      {"WS_INLINE", "[ \\t]+"},
      {"WS", "[ \\t\\f\\r\\n]+"},
      {"NEWLINE", "(\\r?\\n)+"}};
  return patterns;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), tokens_(ebnf_tokens(text)) {}

  RuleSet parse() {
    while (peek().kind != Kind::end) parse_statement();
    for (const auto& [name, use] : uses_) {
      if (rules_.rules[use.first].body == nullptr) refuse_ebnf(text_, use.second, "no rule is called '" + name + "'");
    }
    // Imported rules alone do not say where to begin.
    if (first_rule_ == unbounded) fail(ErrorKind::invalid_request, "the grammar has no rules");
    const auto root = uses_.contains("root") ? uses_.find("root") : uses_.find("start");
    rules_.root = root != uses_.end() ? root->second.first : first_rule_;
    return std::move(rules_);
  }

 private:
  [[nodiscard]] const EbnfToken& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  [[noreturn]] void refuse(const std::string& what) const { refuse_ebnf(text_, peek().position, what); }
  bool take(std::string_view symbol) {
    if (peek().kind != Kind::symbol || peek().text != symbol) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view symbol) {
    if (!take(symbol)) refuse("expected '" + std::string(symbol) + "'");
  }

  uint32_t number_of(const std::string& name, size_t position) {
    const auto known = uses_.find(name);
    if (known != uses_.end()) return known->second.first;
    const uint32_t number = rules_.declare("rule '" + name + "'");
    uses_[name] = {number, position};
    return number;
  }

  /// Whether a definition begins here: `name ::=`, or Lark's `?name:`, `!name:` and `NAME.2:`.
  [[nodiscard]] bool at_definition() const {
    size_t ahead = 0;
    if (peek().kind == Kind::symbol && (peek().text == "?" || peek().text == "!") && peek().begins_line) ahead = 1;
    if (peek(ahead).kind != Kind::name) return false;
    if (peek(ahead + 1).kind == Kind::define) return true;
    return peek(ahead + 1).kind == Kind::symbol && peek(ahead + 1).text == "." && peek(ahead + 2).kind == Kind::name &&
           peek(ahead + 3).kind == Kind::define;
  }

  void parse_statement() {
    if (peek().kind == Kind::directive) {
      parse_directive();
      return;
    }
    if (take(";")) return;
    if (!at_definition()) refuse("expected a rule: name ::= ...");
    if (peek().kind == Kind::symbol) ++at_;
    const EbnfToken name = peek();
    at_ += peek(1).kind == Kind::define ? 2 : 4;
    const bool is_first = first_rule_ == unbounded;
    const uint32_t number = number_of(name.text, name.position);
    if (is_first) first_rule_ = number;
    if (rules_.rules[number].body != nullptr) {
      refuse_ebnf(text_, name.position, "the rule '" + name.text + "' stands twice");
    }
    rules_.rules[number].body = without_left_recursion(parse_choice(0), number);
  }

  /// A ::= A x | y is the same as y x x x ...
  static Expr without_left_recursion(const Expr& body, uint32_t number) {
    const auto starts_with_itself = [number](const Expr& part) {
      return part->kind == Expression::Kind::sequence && part->parts[0]->kind == Expression::Kind::rule &&
             part->parts[0]->rule == number;
    };
    const std::vector<Expr> ways = body->kind == Expression::Kind::choice ? body->parts : std::vector<Expr>{body};
    if (std::none_of(ways.begin(), ways.end(), starts_with_itself)) return body;
    std::vector<Expr> seeds;
    std::vector<Expr> tails;
    for (const Expr& way : ways) {
      if (starts_with_itself(way)) {
        tails.push_back(sequence(std::vector<Expr>(way->parts.begin() + 1, way->parts.end())));
      } else {
        seeds.push_back(way);
      }
    }
    return sequence({choice(std::move(seeds)), repeat(choice(std::move(tails)), 0, unbounded)});
  }

  void parse_directive() {
    const std::string& text = peek().text;
    constexpr std::string_view import = "%import common.";
    if (text.rfind(import, 0) != 0) refuse("'" + text + "' cannot be enforced");
    std::string name = text.substr(import.size());
    name.erase(std::min(name.find_last_not_of(" \t\r") + 1, name.size()));
    std::string alias = name;
    if (const size_t arrow = name.find("->"); arrow != std::string::npos) {
      alias = name.substr(arrow + 2);
      alias.erase(0, std::min(alias.find_first_not_of(' '), alias.size()));
      name.erase(std::min(name.find_first_of(" -"), name.size()));
    }
    const auto known = common_terminals().find(name);
    if (known == common_terminals().end()) refuse("'" + name + "' is not known");
    const uint32_t number = number_of(alias, peek().position);
    if (rules_.rules[number].body != nullptr) refuse("the rule '" + alias + "' stands twice");
    rules_.rules[number].body = pattern(known->second, false);
    ++at_;
  }

  Expr parse_choice(size_t depth) {
    if (depth > deepest) refuse("nests too deep");
    std::vector<Expr> ways = {parse_sequence(depth)};
    while (take("|")) ways.push_back(parse_sequence(depth));
    return choice(std::move(ways));
  }

  [[nodiscard]] bool at_item() const {
    if (at_definition()) return false;
    const EbnfToken& token = peek();
    if (token.kind == Kind::symbol) return token.text == "(" || token.text == "[" || token.text == ".";
    return token.kind == Kind::name || token.kind == Kind::literal || token.kind == Kind::pattern ||
           token.kind == Kind::characters;
  }

  Expr parse_sequence(size_t depth) {
    std::vector<Expr> parts;
    while (at_item()) parts.push_back(parse_repeats(parse_item(depth)));
    if (take("->")) {  // Lark's name for an alternative
      if (peek().kind != Kind::name) refuse("expected a name");
      ++at_;
    }
    return sequence(std::move(parts));
  }

  Expr parse_item(size_t depth) {
    const EbnfToken token = peek();
    ++at_;
    switch (token.kind) {
      case Kind::name:
        return rule(number_of(token.text, token.position));
      case Kind::literal:
        if (peek().kind == Kind::symbol && peek().text == "..") return parse_range(token);
        return token.ignores_case ? any_case(token.text) : literal(token.text);
      case Kind::pattern:
        return pattern(token.text, token.ignores_case);
      case Kind::characters:
        return pattern(token.text, false);
      default:
        break;
    }
    if (token.text == ".") return characters(CharacterSet::all());
    Expr inside = parse_choice(depth + 1);
    expect(token.text == "(" ? ")" : "]");
    return token.text == "(" ? inside : optional(std::move(inside));
  }

  /// Lark's "a".."z".
  Expr parse_range(const EbnfToken& low) {
    expect("..");
    const EbnfToken high = peek();
    const auto single = [](const std::string& text) {
      return !text.empty() && read_utf8(text, 0).length == text.size();
    };
    if (high.kind != Kind::literal || !single(low.text) || !single(high.text)) refuse("expected one character");
    ++at_;
    return characters({{read_utf8(low.text, 0).code_point, read_utf8(high.text, 0).code_point}});
  }

  uint32_t parse_count() {
    uint32_t count = 0;
    const EbnfToken& token = peek();
    const char* end = token.text.data() + token.text.size();
    const auto read = std::from_chars(token.text.data(), end, count);
    if (token.kind != Kind::name || read.ec != std::errc() || read.ptr != end || count > most_repeats) {
      refuse("expected a count");
    }
    ++at_;
    return count;
  }

  Expr parse_repeats(Expr item) {
    while (true) {
      if (take("*")) {
        item = repeat(std::move(item), 0, unbounded);
      } else if (take("+")) {
        item = repeat(std::move(item), 1, unbounded);
      } else if (!at_definition() && take("?")) {
        item = optional(std::move(item));
      } else if (take("{")) {
        const bool from_zero = peek().kind == Kind::symbol && peek().text == ",";
        const uint32_t least = from_zero ? 0 : parse_count();
        uint32_t most = least;
        if (take(",")) most = peek().kind == Kind::symbol && peek().text == "}" ? unbounded : parse_count();
        expect("}");
        if (least > most) refuse("the bounds of a repeat stand in the wrong order");
        item = repeat(std::move(item), least, most);
      } else if (take("~")) {
        const uint32_t least = parse_count();
        const uint32_t most = take("..") ? parse_count() : least;
        if (least > most) refuse("the bounds of a repeat stand in the wrong order");
        item = repeat(std::move(item), least, most);
      } else {
        return item;
      }
    }
  }

  Expr pattern(const std::string& text, bool ignores_case) {
    RegexUse use;
    if (ignores_case) {
      use.write = [](const CharacterSet& set) {
        CharacterSet both = set;
        for (char32_t letter = 'a'; letter <= 'z'; ++letter) {
          const char32_t upper = letter - 'a' + 'A';
          if (set.contains(letter)) both.add(upper, upper);
          if (set.contains(upper)) both.add(letter, letter);
        }
        return characters(std::move(both));
      };
    }
    try {
      return regex(text, use, rules_);
    } catch (const Error& failure) {
      refuse(failure.what());
    }
  }

  static Expr any_case(const std::string& text) {
    std::vector<Expr> parts;
    for (const char c : text) {
      const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
      const char upper = lower >= 'a' && lower <= 'z' ? static_cast<char>(lower - 32) : lower;
      parts.push_back(literals({std::string(1, lower), std::string(1, upper)}));
    }
    return sequence(std::move(parts));
  }

  std::string_view text_;
  std::vector<EbnfToken> tokens_;
  size_t at_ = 0;
  RuleSet rules_;
  std::map<std::string, std::pair<uint32_t, size_t>, std::less<>> uses_;  ///< name: rule, where it first stands
  uint32_t first_rule_ = unbounded;
};

}  // namespace

RuleSet ebnf_rules(std::string_view text) { return Parser(text).parse(); }

}  // namespace tensorfold::text::grammar
