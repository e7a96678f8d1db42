// The pieces of JSON as grammar rules: blanks, strings, numbers, values of any kind, constants.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/grammar/expression.h"

namespace tensorfold::text::grammar {

/// Adds what it needs to a set of rules, each rule once.
class JsonRules {
 public:
  explicit JsonRules(RuleSet& rules);

  /// Up to 32 blanks: between any two tokens of JSON, never more, so that a reply cannot be blanks for ever. None with
  /// RuleSet::json_blanks off.
  Expr blanks();
  /// One character of a string, plain or escaped.
  Expr character();
  /// A string of `least` to `most` characters, with its quotes.
  Expr string(uint32_t least = 0, uint32_t most = unbounded);
  static Expr quoted(Expr inside);
  /// A character of the set as it stands in a string: escaped where it must be, otherwise plain.
  static Expr written(const CharacterSet& set);
  /// A string, without its quotes, that is none of `names`. Such a string escapes only what it must where it might
  /// still become one of them.
  Expr other_than(const std::vector<std::string>& names);
  static Expr number();
  static Expr integer();
  Expr value();
  Expr object();
  Expr array();
  /// This value; the members of an object in their order.
  Expr constant(const nlohmann::ordered_json& value);
  /// One member of an object and the blanks behind it.
  Expr member(Expr key, Expr value);
  /// A comma and the blanks behind it.
  Expr comma();

 private:
  Expr shared(std::optional<uint32_t>& number, const char* name, const std::function<Expr()>& body);
  RuleSet& rules_;
  std::optional<uint32_t> blanks_;
  std::optional<uint32_t> value_;
  std::optional<uint32_t> object_;
  std::optional<uint32_t> array_;
};

/// The text as it stands inside a JSON string.
std::string json_spelling(std::string_view text);

}  // namespace tensorfold::text::grammar
