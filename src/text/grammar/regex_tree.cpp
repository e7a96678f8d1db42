#include "text/grammar/regex_tree.h"

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "text/grammar/expression.h"
#include "text/hex_digit.h"
#include "text/unicode.h"

namespace tensorfold::text::grammar {
namespace {

constexpr size_t deepest = 200;
constexpr uint32_t most_repeats = 100'000;
/// Ranges of all sets of a pattern: Python's letters are 700, and a long pattern may name them often.
constexpr size_t most_ranges = 250'000;

/// A set as each dialect reads it: ASCII's, ECMA-262's, Python's of str. They differ in \d, \w and \s.
using Readings = std::array<CharacterSet, 3>;

Readings alike(CharacterSet set) { return {set, set, set}; }

void add(Readings& to, const Readings& more) {
  for (size_t i = 0; i < to.size(); ++i) to[i].add(more[i]);
}

/// Each dialect negates its own reading, so that what all agree on becomes narrower, never wider.
Readings complement(const Readings& sets) {
  Readings result;
  for (size_t i = 0; i < sets.size(); ++i) result[i] = sets[i].complement();
  return result;
}

/// What is a member in every dialect.
CharacterSet agreed(const Readings& sets) {
  return sets[0] == sets[1] && sets[1] == sets[2] ? sets[0] : sets[0].intersected(sets[1]).intersected(sets[2]);
}

/// The characters of the categories (Unicode 16.0) that `is_member` names.
template <typename IsMember>
CharacterSet of_categories(IsMember is_member) {
  CharacterSet set;
  std::optional<char32_t> first;
  for (char32_t character = 0; character <= 0x110000; ++character) {
    const bool member = character < 0x110000 && is_member(character);
    if (member && !first) first = character;
    if (member || !first) continue;
    set.add(*first, character - 1);
    first.reset();
  }
  return set;
}

const Readings& digits() {
  static const Readings sets = [] {
    Readings readings = alike({{'0', '9'}});
    readings[2] = of_categories([](char32_t character) { return category(character) == Category::Nd; });
    return readings;
  }();
  return sets;
}

const Readings& word_letters() {
  static const Readings sets = [] {
    Readings readings = alike({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
    readings[2] = of_categories([](char32_t character) { return is_letter(character) || is_number(character); });
    readings[2].add('_', '_');
    return readings;
  }();
  return sets;
}

const Readings& spaces() {
  static const CharacterSet common = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},
                                      {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                      {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
  static const Readings sets = [] {
    Readings readings = {CharacterSet{{'\t', '\r'}, {' ', ' '}}, common, common};
    readings[1].add(0xFEFF, 0xFEFF);
    readings[2].add(0x1C, 0x1F);
    readings[2].add(0x85, 0x85);
    return readings;
  }();
  return sets;
}

CharacterSet line_ends() { return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}; }

class RegexParser {
 public:
  explicit RegexParser(std::string_view text) : text_(text) {
    if (!is_valid_utf8(text)) refuse("is not UTF-8");
  }

  RegexNode parse() {
    RegexNode node = parse_choice(0);
    if (!at_end()) refuse("has a ')' too many");
    return node;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorKind::invalid_request, "the regular expression {} (at byte {})", what, at_);
  }
  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool take(std::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }

  RegexNode parse_choice(size_t depth) {
    if (depth > deepest) refuse("nests too deep");
    RegexNode choices;
    choices.kind = RegexNode::Kind::choice;
    choices.parts.push_back(parse_sequence(depth));
    while (take("|")) choices.parts.push_back(parse_sequence(depth));
    return choices.parts.size() == 1 ? std::move(choices.parts[0]) : std::move(choices);
  }

  RegexNode parse_sequence(size_t depth) {
    RegexNode parts;
    while (!at_end() && peek() != '|' && peek() != ')') {
      RegexNode atom = parse_atom(depth);
      parts.parts.push_back(parse_repeats(std::move(atom)));
    }
    return parts.parts.size() == 1 ? std::move(parts.parts[0]) : std::move(parts);
  }

  RegexNode of(CharacterSet set) {
    ranges_ += set.ranges().size();
    if (ranges_ > most_ranges) refuse("is too large");
    RegexNode node;
    node.kind = RegexNode::Kind::set;
    node.set = std::move(set);
    return node;
  }
  static RegexNode anchor(RegexNode::Kind kind) {
    RegexNode node;
    node.kind = kind;
    return node;
  }

  RegexNode parse_atom(size_t depth) {
    switch (peek()) {
      case '(':
        return parse_group(depth);
      case '[':
        ++at_;
        return of(parse_class());
      case '.':
        ++at_;
        return of(line_ends().complement());
      case '^':
        ++at_;
        return anchor(RegexNode::Kind::begin);
      case '$':
        ++at_;
        return anchor(RegexNode::Kind::end);
      case '\\':
        if (take("\\A")) return anchor(RegexNode::Kind::begin);
        if (take("\\Z") || take("\\z")) return anchor(RegexNode::Kind::end);
        ++at_;
        return of(parse_single_escape());
      case '*':
      case '+':
      case '?':
        refuse("repeats nothing");
      default:
        break;
    }
    const char32_t letter = next_code_point(text_, at_);
    return of({{letter, letter}});
  }

  RegexNode parse_group(size_t depth) {
    ++at_;
    if (take("?")) {
      if (take(":")) {
      } else if (take("P<") || (peek() == '<' && peek(1) != '=' && peek(1) != '!' && take("<"))) {
        const size_t close = text_.find('>', at_);
        if (close == std::string_view::npos) refuse("has a group name without an end");
        at_ = close + 1;
      } else if (peek() == '=' || peek() == '!' || peek() == '<') {
        refuse("looks ahead or behind, which cannot be enforced");
      } else {
        refuse("uses a kind of group that cannot be enforced");
      }
    }
    RegexNode node = parse_choice(depth + 1);
    if (!take(")")) refuse("has a group without an end");
    return node;
  }

  /// {m}, {m,} or {m,n}; anything else is an ordinary brace.
  std::optional<std::pair<uint32_t, uint32_t>> parse_counts() {
    const size_t start = at_;
    ++at_;
    const auto least = parse_count();
    auto most = least;
    if (least && take(",")) most = peek() == '}' ? std::optional(unbounded) : parse_count();
    if (least && most && take("}")) return std::pair(*least, *most);
    at_ = start;
    return std::nullopt;
  }
  std::optional<uint32_t> parse_count() {
    uint32_t count = 0;
    const size_t start = at_;
    while (peek() >= '0' && peek() <= '9') {
      count = count * 10 + static_cast<uint32_t>(peek() - '0');
      if (count > most_repeats) refuse(fmt::format("repeats more than {} times", most_repeats));
      ++at_;
    }
    return at_ == start ? std::nullopt : std::optional(count);
  }

  RegexNode parse_repeats(RegexNode atom) {
    const bool is_anchor = atom.kind == RegexNode::Kind::begin || atom.kind == RegexNode::Kind::end;
    for (bool first = true;; first = false) {
      uint32_t least = 0;
      uint32_t most = unbounded;
      if (take("*")) {
      } else if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (peek() == '{') {
        const auto counts = parse_counts();
        if (!counts) {
          if (first) return atom;
          refuse("repeats a repeat");
        }
        std::tie(least, most) = *counts;
        if (least > most) refuse("has a repeat with its bounds in the wrong order");
      } else {
        return atom;
      }
      if (!first) refuse("repeats a repeat");
      if (is_anchor) refuse("repeats an anchor");
      take("?");  // lazy: the same texts
      if (peek() == '+') refuse("uses a possessive repeat, which cannot be enforced");
      RegexNode node;
      node.kind = RegexNode::Kind::repeat;
      node.parts.push_back(std::move(atom));
      node.least = least;
      node.most = most;
      atom = std::move(node);
    }
  }

  char32_t parse_hex(size_t digits) {
    char32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const int digit = hex_digit(peek());
      if (digit < 0) refuse("has a malformed escape");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  char32_t parse_unicode() {
    if (!take("{")) {
      const char32_t high = parse_hex(4);
      if (high < 0xD800 || high > 0xDBFF || !take("\\u")) return high;
      const char32_t low = parse_hex(4);
      if (low < 0xDC00 || low > 0xDFFF) refuse("has half a surrogate pair");
      return 0x10000 + ((high - 0xD800) << 10U) + (low - 0xDC00);
    }
    char32_t value = 0;
    size_t count = 0;
    while (peek() != '}' && count < 7) {
      value = value * 16 + parse_hex(1);
      ++count;
    }
    if (count == 0 || !take("}") || value > 0x10FFFF) refuse("has a malformed escape");
    return value;
  }

  /// Behind a backslash, outside of a class.
  CharacterSet parse_single_escape() {
    const Readings sets = parse_escape(false);
    for (const CharacterSet& one : sets) ranges_ += one.ranges().size();
    return agreed(sets);
  }

  /// Behind a backslash.
  Readings parse_escape(bool in_class) {
    if (at_end()) refuse("ends in a backslash");
    const char32_t letter = next_code_point(text_, at_);
    const auto one = [](char32_t value) { return alike({{value, value}}); };
    switch (letter) {
      case 'd':
        return digits();
      case 'D':
        return complement(digits());
      case 'w':
        return word_letters();
      case 'W':
        return complement(word_letters());
      case 's':
        return spaces();
      case 'S':
        return complement(spaces());
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        if (peek() >= '0' && peek() <= '9') refuse("has an octal escape");
        return one(0);
      case 'x':
        return one(parse_hex(2));
      case 'u':
        return one(parse_unicode());
      case 'c': {
        const char control = peek();
        if ((control < 'A' || control > 'Z') && (control < 'a' || control > 'z')) refuse("has a malformed escape");
        ++at_;
        return one(static_cast<char32_t>(control) & 0x1FU);
      }
      case 'b':
        if (in_class) return one('\b');
        [[fallthrough]];
      case 'B':
        refuse("asks for a word border, which cannot be enforced");
      case 'p':
      case 'P':
        refuse("uses a Unicode property, which cannot be enforced");
      default:
        break;
    }
    if (letter >= '1' && letter <= '9') refuse("uses a back-reference, which cannot be enforced");
    if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z')) refuse("has an unknown escape");
    return one(letter);
  }

  CharacterSet parse_class() {
    const bool negated = take("^");
    Readings set;
    bool first = true;
    while (true) {
      if (at_end()) refuse("has a class without an end");
      // Python reads a bracket that comes first as itself, ECMA-262 as the end of an empty class.
      if (peek() == ']' && first) refuse("has an empty class");
      if (take("]")) break;
      first = false;
      const Readings low = parse_class_member();
      if (peek() != '-' || peek(1) == ']' || peek(1) == '\0') {
        add(set, low);
        continue;
      }
      ++at_;
      const Readings high = parse_class_member();
      const auto single = [](const Readings& one) {
        return one[0].ranges().size() == 1 && one[0].ranges()[0].first == one[0].ranges()[0].last;
      };
      if (!single(low) || !single(high) || low[0].ranges()[0].first > high[0].ranges()[0].first) {
        refuse("has a malformed range in a class");
      }
      add(set, alike({{low[0].ranges()[0].first, high[0].ranges()[0].first}}));
    }
    for (const CharacterSet& one : set) ranges_ += one.ranges().size();
    return agreed(negated ? complement(set) : set);
  }

  Readings parse_class_member() {
    if (at_end()) refuse("has a class without an end");
    if (take("\\")) return parse_escape(true);
    if (peek() == '[' && (peek(1) == ':' || peek(1) == '.' || peek(1) == '=')) {
      refuse("uses a named class, which cannot be enforced");
    }
    const char32_t letter = next_code_point(text_, at_);
    return alike({{letter, letter}});
  }

  std::string_view text_;
  size_t at_ = 0;
  size_t ranges_ = 0;  ///< of the sets so far, as every dialect reads them
};

}  // namespace

RegexNode parse_regex(std::string_view pattern) { return RegexParser(pattern).parse(); }

}  // namespace tensorfold::text::grammar
