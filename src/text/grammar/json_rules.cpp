#include "text/grammar/json_rules.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/utf8.h"

namespace tensorfold::text::grammar {
namespace {

constexpr uint32_t most_blanks = 32;

CharacterSet plain_characters() {
  CharacterSet set = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  return set.complement();
}

/// The escape that a character must have inside a JSON string.
std::string escape_of(char32_t character) {
  switch (character) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", static_cast<uint32_t>(character));
  }
}

CharacterSet hex(std::string_view letters) {
  CharacterSet set;
  for (const char letter : letters) set.add(static_cast<char32_t>(letter), static_cast<char32_t>(letter));
  return set;
}

/// \uXXXX: a character of the first plane, or a pair of surrogates.
Expr unicode_escape() {
  const Expr any = characters({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  const Expr no_d = characters({{'0', '9'}, {'A', 'C'}, {'a', 'c'}, {'E', 'F'}, {'e', 'f'}});
  const Expr d = characters(hex("dD"));
  return choice({sequence({literal("\\u"), no_d, any, any, any}),
                 sequence({literal("\\u"), d, characters({{'0', '7'}}), any, any}),
                 sequence({literal("\\u"), d, characters(hex("89abAB")), any, any, literal("\\u"), d,
                           characters(hex("cdefCDEF")), any, any})});
}

}  // namespace

std::string json_spelling(std::string_view text) {
  std::string spelled;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = read_utf8(text, at);
    const char32_t character = step.code_point;
    if (character < 0x20 || character == '"' || character == '\\') {
      spelled += escape_of(character);
    } else {
      append_utf8(spelled, character);
    }
    at += step.length;
  }
  return spelled;
}

JsonRules::JsonRules(RuleSet& rules) : rules_(rules) {}

Expr JsonRules::shared(std::optional<uint32_t>& number, const char* name, const std::function<Expr()>& body) {
  if (!number) {
    number = rules_.declare(name);
    rules_.rules[*number].body = body();
  }
  return rule(*number);
}

Expr JsonRules::blanks() {
  if (!rules_.json_blanks) return empty();
  return shared(blanks_, "blanks", [] {
    return repeat(characters({{' ', ' '}, {'\t', '\t'}, {'\n', '\n'}, {'\r', '\r'}}), 0, most_blanks);
  });
}

Expr JsonRules::character() {
  return shared(rules_.json_character, "a string's character", [] {
    CharacterSet simple = hex("\"\\/bfnrt");
    return choice(
        {characters(plain_characters()), sequence({literal("\\"), characters(std::move(simple))}), unicode_escape()});
  });
}

Expr JsonRules::quoted(Expr inside) { return sequence({literal("\""), std::move(inside), literal("\"")}); }

Expr JsonRules::string(uint32_t least, uint32_t most) { return quoted(repeat(character(), least, most)); }

Expr JsonRules::written(const CharacterSet& set) {
  static const CharacterSet plain = plain_characters();
  static const CharacterSet special = plain.complement();
  std::vector<std::string> escapes;
  const CharacterSet escaped = set.intersected(special);
  for (const CharacterRange& range : escaped.ranges()) {
    for (char32_t character = range.first; character <= range.last; ++character) {
      escapes.push_back(escape_of(character));
    }
  }
  return choice({characters(set.intersected(plain)), literals(std::move(escapes))});
}

Expr JsonRules::other_than(const std::vector<std::string>& names) {
  struct Branch {
    std::map<std::string, Branch> next;  ///< by character as it is written
    bool ends = false;
  };
  Branch root;
  for (const std::string& name : names) {
    Branch* at = &root;
    for (size_t i = 0; i < name.size();) {
      const Utf8Step step = read_utf8(name, i);
      at = &at->next[json_spelling(name.substr(i, step.length))];
      i += step.length;
    }
    at->ends = true;
  }
  const Expr rest = repeat(character(), 0, unbounded);
  const std::function<Expr(const Branch&)> build = [&](const Branch& branch) -> Expr {
    CharacterSet plain = plain_characters();
    std::vector<std::string> escapes = {"\\\"", "\\\\", "\\b", "\\f", "\\n", "\\r", "\\t"};
    std::vector<Expr> ways;
    for (const auto& [written, next] : branch.next) {
      size_t at = 0;
      if (written[0] == '\\') {
        std::erase(escapes, written);
      } else {
        const char32_t character = next_code_point(written, at);
        plain = plain.intersected(CharacterSet{{character, character}}.complement());
      }
      ways.push_back(sequence({literal(written), build(next)}));
    }
    ways.push_back(sequence({choice({characters(plain), literals(std::move(escapes))}), rest}));
    if (!branch.ends) ways.push_back(empty());
    return choice(std::move(ways));
  };
  return names.empty() ? rest : build(root);
}

Expr JsonRules::integer() {
  // At most 18 digits: every such number is an exact 64-bit integer.
  const Expr digit = characters({{'0', '9'}});
  return sequence(
      {optional(literal("-")), choice({literal("0"), sequence({characters({{'1', '9'}}), repeat(digit, 0, 17)})})});
}

Expr JsonRules::number() {
  // Bounded so that no number is infinite when it is read.
  const Expr digit = characters({{'0', '9'}});
  const Expr fraction = sequence({literal("."), repeat(digit, 1, 18)});
  const Expr exponent = sequence({characters(hex("eE")), optional(characters(hex("+-"))), repeat(digit, 1, 2)});
  return sequence({integer(), optional(fraction), optional(exponent)});
}

Expr JsonRules::comma() { return sequence({literal(","), blanks()}); }

Expr JsonRules::member(Expr key, Expr value) {
  return sequence({std::move(key), blanks(), literal(":"), blanks(), std::move(value), blanks()});
}

Expr JsonRules::value() {
  return shared(value_, "a JSON value", [this] {
    return choice({object(), array(), string(), number(), literals({"true", "false", "null"})});
  });
}

Expr JsonRules::object() {
  return shared(object_, "a JSON object", [this] {
    const Expr one = member(string(), value());
    return sequence({literal("{"), blanks(), optional(sequence({one, repeat(sequence({comma(), one}), 0, unbounded)})),
                     literal("}")});
  });
}

Expr JsonRules::array() {
  return shared(array_, "a JSON array", [this] {
    const Expr one = sequence({value(), blanks()});
    return sequence({literal("["), blanks(), optional(sequence({one, repeat(sequence({comma(), one}), 0, unbounded)})),
                     literal("]")});
  });
}

Expr JsonRules::constant(const nlohmann::ordered_json& value) {
  if (value.is_object()) {
    std::vector<Expr> parts = {literal("{"), blanks()};
    bool first = true;
    for (const auto& [key, one] : value.items()) {
      if (!std::exchange(first, false)) parts.push_back(comma());
      parts.push_back(member(quoted(literal(json_spelling(key))), constant(one)));
    }
    parts.push_back(literal("}"));
    return sequence(std::move(parts));
  }
  if (value.is_array()) {
    std::vector<Expr> parts = {literal("["), blanks()};
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) parts.push_back(comma());
      parts.push_back(constant(value[i]));
      parts.push_back(blanks());
    }
    parts.push_back(literal("]"));
    return sequence(std::move(parts));
  }
  if (value.is_string()) return quoted(literal(json_spelling(value.get_ref<const std::string&>())));
  return literal(value.dump());
}

}  // namespace tensorfold::text::grammar
