#include "text/grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/grammar/automaton.h"
#include "text/grammar/json_rules.h"
#include "text/grammar/matcher.h"
#include "text/grammar/number_range.h"
#include "text/grammar/regex.h"
#include "text/grammar/schema_merge.h"
#include "text/grammar/schema_objects.h"
#include "text/grammar/string_format.h"

namespace tensorfold::text::grammar {
namespace {

constexpr size_t most_schemas = 20'000;
constexpr size_t most_merged_schemas = 50'000;
constexpr size_t longest_schema = size_t{1} << 20;

/// Keywords that could make a text invalid and that no grammar of ours enforces.
constexpr std::array refused = {
    "not",          "if",          "then",         "else", "contains", "dependentRequired", "dependentSchemas",
    "dependencies", "$dynamicRef", "$recursiveRef"};

constexpr std::array object_keywords = {"properties",    "required",      "additionalProperties", "patternProperties",
                                        "minProperties", "maxProperties", "propertyNames"};
constexpr std::array array_keywords = {"items",    "prefixItems", "additionalItems",
                                       "minItems", "maxItems",    "uniqueItems"};
constexpr std::array string_keywords = {"minLength", "maxLength", "pattern", "format"};
constexpr std::array number_keywords = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};

template <size_t Count>
bool has_any(const Json& schema, const std::array<const char*, Count>& keywords) {
  return std::any_of(keywords.begin(), keywords.end(), [&](const char* key) { return schema.contains(key); });
}

uint32_t count_of(const Json& schema, const char* key, uint32_t otherwise, const std::string& path) {
  const auto found = schema.find(key);
  if (found == schema.end()) return otherwise;
  const double value = found->is_number() ? found->get<double>() : -1.0;
  if (value < 0 || value != static_cast<double>(static_cast<uint64_t>(std::min(value, 4e9))) || value >= 4e9) {
    refuse_schema(path + "/" + key, "must be a count");
  }
  return static_cast<uint32_t>(value);
}

/// Whether the value holds a number that was rounded when it was read: integers beyond 64 bits become doubles.
bool has_rounded_number(const Json& value) {
  if (value.is_structured()) return std::any_of(value.begin(), value.end(), has_rounded_number);
  return value.is_number_float() && std::abs(value.get<double>()) >= 1e18;
}

class SchemaCompiler final : public SchemaContext {
 public:
  SchemaCompiler(const Json& root, RuleSet& rules) : root_(root), rules_(rules), json_(rules) {}

  uint32_t compile_root() { return rule_for(root_, "#"); }

  JsonRules& json() override { return json_; }
  RuleSet& rules() override { return rules_; }
  Expr schema(const Json& schema, const std::string& path) override { return rule(rule_for(schema, path)); }

  /// A pattern inside a string, with its quotes.
  Expr pattern(const std::string& pattern, uint32_t least, uint32_t most, const std::string& path) override {
    RegexUse use;
    use.search = true;
    use.write = JsonRules::written;
    use.least = least;
    use.most = most;
    try {
      return JsonRules::quoted(regex(pattern, use, rules_));
    } catch (const Error& failure) {
      refuse_schema(path, failure.what());
    }
  }

  Expr string(const Json& schema, const std::string& path) override {
    const uint32_t least = count_of(schema, "minLength", 0, path);
    const uint32_t most = count_of(schema, "maxLength", unbounded, path);
    const auto pattern_text = schema.find("pattern");
    const auto format = schema.find("format");
    if (pattern_text != schema.end()) {
      if (!pattern_text->is_string()) refuse_schema(path + "/pattern", "must be a string");
      if (format != schema.end()) refuse_schema(path + "/format", "beside a pattern cannot be enforced");
      return pattern(pattern_text->get<std::string>(), least, most, path + "/pattern");
    }
    if (format != schema.end()) {
      if (!format->is_string()) refuse_schema(path + "/format", "must be a string");
      const auto known = format_pattern(format->get_ref<const std::string&>());
      if (!known) refuse_schema(path + "/format", "'" + format->get<std::string>() + "' cannot be enforced");
      return pattern(*known, least, most, path + "/format");
    }
    return json_.string(least, most);
  }

 private:
  /// One rule for each schema that is written alike; a rule stands before it is filled, so schemas may contain
  /// themselves.
  uint32_t rule_for(const Json& schema, const std::string& path) {
    const bool reference = schema.is_object() && schema.size() == 1 && schema.contains("$ref");
    if (reference && schema["$ref"].is_string()) {
      const auto name = schema["$ref"].get<std::string>();
      const auto known = references_.find(name);
      if (known != references_.end()) return known->second;
      const uint32_t number = rules_.declare("the schema " + name);
      references_[name] = number;
      rules_.rules[number].body = rule(rule_for(find(name, path), name));
      return number;
    }
    const std::string key = schema.dump(-1, ' ', false, Json::error_handler_t::replace);
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    if (known_.size() >= most_schemas) refuse_schema(path, "is too large a schema");
    const uint32_t number = rules_.declare("the schema at " + path);
    known_[key] = number;
    rules_.rules[number].body = compile(schema, path);
    return number;
  }

  const Json& find(const std::string& reference, const std::string& path) const {
    const std::string where = path + "/$ref";
    if (reference.empty() || reference[0] != '#') {
      refuse_schema(where,
                    "'" + reference + "' is not inside the schema; only references like #/$defs/name are followed");
    }
    try {
      const Json::json_pointer pointer(unescaped(reference.substr(1)));
      if (root_.contains(pointer)) return root_.at(pointer);
    } catch (const Json::exception&) {
      // The same as a place that is not there.
    }
    refuse_schema(where, "'" + reference + "' names nothing in the schema");
  }

  /// Percent escapes of a URI's fragment.
  static std::string unescaped(const std::string& text) {
    std::string result;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto digit = [&](size_t at) {
        return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at]));
      };
      if (text[i] == '%' && digit(i + 1) && digit(i + 2)) {
        result += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        result += text[i];
      }
    }
    return result;
  }

  Json flat(const Json& schema, const std::string& path) {
    const FindReference find_it = [this](const std::string& reference, const std::string& where) -> const Json& {
      return find(reference, where);
    };
    return flattened(schema, path, find_it, budget_);
  }

  Expr compile(const Json& written, const std::string& path) {
    Json schema = flat(written, path);
    if (schema.is_boolean()) return schema.get<bool>() ? json_.value() : never();
    for (const char* keyword : refused) {
      if (schema.contains(keyword)) refuse_schema(path + "/" + keyword, "cannot be enforced");
    }
    // What stands beside them is evaluated; what they speak of is what additionalProperties and items speak of here.
    for (const auto& [late, early] :
         {std::pair{"unevaluatedProperties", "additionalProperties"}, std::pair{"unevaluatedItems", "items"}}) {
      if (schema.contains(late) && !schema.contains(early)) schema[early] = schema[late];
    }
    const auto any_of = schema.find("anyOf");
    if (any_of != schema.end()) return alternatives(schema, *any_of, path);
    if (schema.contains("const") || schema.contains("enum")) return constants(schema, path);
    const auto type = schema.find("type");
    if (type == schema.end()) return untyped(schema, path);
    std::vector<Expr> ways;
    for (const Json& one : type->is_array() ? *type : Json::array({*type})) ways.push_back(typed(one, schema, path));
    return choice(std::move(ways));
  }

  Expr alternatives(const Json& schema, const Json& any_of, const std::string& path) {
    Json base = schema;
    base.erase("anyOf");
    const bool alone = !constrains(base);
    std::vector<Expr> ways;
    for (size_t i = 0; i < any_of.size(); ++i) {
      const std::string where = path + "/anyOf/" + std::to_string(i);
      if (alone) {
        ways.push_back(this->schema(any_of[i], where));
      } else {
        ways.push_back(this->schema({{"allOf", Json::array({base, any_of[i]})}}, where));
      }
    }
    return choice(std::move(ways));
  }

  Expr constants(const Json& schema, const std::string& path) {
    Json values = Json::array();
    if (schema.contains("enum")) {
      values = schema["enum"];
      if (!values.is_array()) refuse_schema(path + "/enum", "must be a list");
      if (schema.contains("const")) {
        const bool listed = std::find(values.begin(), values.end(), schema["const"]) != values.end();
        values = listed ? Json::array({schema["const"]}) : Json::array();
      }
    } else {
      values.push_back(schema["const"]);
    }
    Json rest = schema;
    rest.erase("enum");
    rest.erase("const");
    std::vector<Expr> ways;
    std::unique_ptr<Matcher> filter;
    for (const Json& value : values) {
      if (has_rounded_number(value)) {
        refuse_schema(path + (schema.contains("const") ? "/const" : "/enum"), "has a number of more than 18 digits");
      }
      if (constrains(rest)) {
        if (value.is_structured() && (rest.size() > 1 || !rest.contains("type"))) {
          refuse_schema(path + "/enum", "with objects or lists cannot be combined with other keywords");
        }
        if (!filter) filter = matcher_of(rest, path);
        const Json shown = value.is_object() ? Json::object() : value.is_array() ? Json::array() : value;
        if (filter && !filter->matches(shown.dump())) continue;
      }
      ways.push_back(json_.constant(value));
    }
    return choice(std::move(ways));
  }

  /// What a schema without enum and const allows; null: nothing.
  std::unique_ptr<Matcher> matcher_of(const Json& schema, const std::string& path) {
    RuleSet rules;
    SchemaCompiler compiler(root_, rules);
    const uint32_t number = compiler.rule_for(schema, path);
    rules.root = rules.add("root", choice({rule(number), literal("\x01")}));  // never empty
    return std::make_unique<Matcher>(grammar::compile(rules), std::make_shared<Vocabulary>(std::vector<std::string>{}));
  }

  Expr untyped(const Json& schema, const std::string& path) {
    std::vector<Expr> ways;
    if (has_any(schema, object_keywords)) ways.push_back(typed("object", schema, path));
    if (has_any(schema, array_keywords)) ways.push_back(typed("array", schema, path));
    if (has_any(schema, string_keywords)) ways.push_back(typed("string", schema, path));
    if (has_any(schema, number_keywords)) ways.push_back(typed("number", schema, path));
    return ways.empty() ? json_.value() : choice(std::move(ways));
  }

  Expr typed(const Json& type, const Json& schema, const std::string& path) {
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    if (name == "object") return object_expression(schema, path, *this);
    if (name == "array") return array_expression(schema, path, *this);
    if (name == "string") return string(schema, path);
    if (name == "number" || name == "integer") return number(schema, path, name == "integer");
    if (name == "boolean") return literals({"true", "false"});
    if (name == "null") return literal("null");
    refuse_schema(path + "/type", "'" + (name.empty() ? type.dump() : name) + "' is no JSON type");
  }

  Expr number(const Json& schema, const std::string& path, bool integer) {
    const auto multiple = schema.find("multipleOf");
    const bool whole = multiple != schema.end() && *multiple == 1;
    if (multiple != schema.end() && !whole) refuse_schema(path + "/multipleOf", "cannot be enforced");
    const auto least = bound(schema, "minimum", "exclusiveMinimum", true, path);
    const auto most = bound(schema, "maximum", "exclusiveMaximum", false, path);
    try {
      if (integer || whole) return least || most ? integers_between(least, most) : JsonRules::integer();
      return least || most ? numbers_between(least, most) : JsonRules::number();
    } catch (const Error& failure) {
      refuse_schema(path, failure.what());
    }
  }

  static std::optional<NumberBound> bound(const Json& schema, const char* name, const char* exclusive, bool is_least,
                                          const std::string& path) {
    const auto number = schema.find(name);
    const auto beyond = schema.find(exclusive);
    std::optional<NumberBound> result;
    if (number != schema.end()) {
      if (!number->is_number()) refuse_schema(path + "/" + name, "must be a number");
      result = NumberBound{number->dump(), true};
    }
    if (beyond == schema.end()) return result;
    if (beyond->is_boolean()) {  // draft 4
      if (result) result->inclusive = !beyond->get<bool>();
      return result;
    }
    if (!beyond->is_number()) refuse_schema(path + "/" + exclusive, "must be a number");
    const bool tighter = !result || (is_least ? beyond->get<double>() >= number->get<double>()
                                              : beyond->get<double>() <= number->get<double>());
    if (tighter) result = NumberBound{beyond->dump(), false};
    return result;
  }

  const Json& root_;
  RuleSet& rules_;
  JsonRules json_;
  std::map<std::string, uint32_t> known_;
  std::map<std::string, uint32_t> references_;
  size_t budget_ = most_merged_schemas;
};

}  // namespace

void refuse_schema(const std::string& path, const std::string& what) {
  fail(ErrorKind::invalid_request, "at {}: {}", path, what);
}

RuleSet json_schema_rules(const nlohmann::ordered_json& schema, bool blanks) {
  if (schema.dump(-1, ' ', false, Json::error_handler_t::replace).size() > longest_schema) {
    refuse_schema("#", "is larger than 1 MiB");
  }
  RuleSet rules;
  rules.json_blanks = blanks;
  SchemaCompiler compiler(schema, rules);
  rules.root = compiler.compile_root();
  return rules;
}

}  // namespace tensorfold::text::grammar
