// A validator of JSON Schema for tests, written from the specification and without a line of the grammar compiler: it
// judges parsed values, the compiler builds automata over bytes.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <string>

#include <nlohmann/json.hpp>

namespace tensorfold::testing {

/// Why a value breaks a schema, and where; empty: it is valid.
class SchemaValidator {
 public:
  using Json = nlohmann::ordered_json;
  explicit SchemaValidator(Json schema) : root_(std::move(schema)) {}
  [[nodiscard]] std::string problem(const Json& value) const { return check(root_, value, "$"); }

 private:
  static bool has_type(const std::string& type, const Json& value) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
    return type == "number" && value.is_number();
  }
  static size_t characters(const std::string& text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                             [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
  }
  [[nodiscard]] std::string check(const Json& schema, const Json& value, const std::string& at) const {
    if (schema.is_boolean()) return schema.get<bool>() ? "" : at + ": nothing is allowed";
    for (const auto& [key, rule] : schema.items()) {
      const std::string wrong = keyword(key, rule, schema, value, at);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }
  [[nodiscard]] std::string keyword(const std::string& key, const Json& rule, const Json& schema, const Json& value,
                                    const std::string& at) const {
    const auto complain = [&](bool fine) { return fine ? std::string() : at + " breaks " + key + " " + rule.dump(); };
    if (key == "$ref") return check(root_.at(Json::json_pointer(rule.get<std::string>().substr(1))), value, at);
    if (key == "type") {
      const Json types = rule.is_array() ? rule : Json::array({rule});
      return complain(std::any_of(types.begin(), types.end(), [&](const Json& type) { return has_type(type, value); }));
    }
    if (key == "enum") return complain(std::find(rule.begin(), rule.end(), value) != rule.end());
    if (key == "const") return complain(rule == value);
    if (key == "allOf" || key == "anyOf" || key == "oneOf") {
      const auto fits =
          std::count_if(rule.begin(), rule.end(), [&](const Json& one) { return check(one, value, at).empty(); });
      const auto all = static_cast<std::ptrdiff_t>(rule.size());
      return complain(key == "allOf" ? fits == all : key == "anyOf" ? fits >= 1 : fits == 1);
    }
    if (value.is_number()) return complain(number_holds(key, rule, value.get<double>()));
    if (value.is_string()) return complain(string_holds(key, rule, value.get<std::string>()));
    if (value.is_array()) return array_problem(key, rule, schema, value, at);
    if (value.is_object()) return object_problem(key, rule, schema, value, at);
    return "";
  }
  static bool number_holds(const std::string& key, const Json& rule, double value) {
    if (key == "minimum") return value >= rule.get<double>();
    if (key == "maximum") return value <= rule.get<double>();
    if (key == "exclusiveMinimum") return value > rule.get<double>();
    if (key == "exclusiveMaximum") return value < rule.get<double>();
    return true;
  }
  static bool string_holds(const std::string& key, const Json& rule, const std::string& value) {
    if (key == "minLength") return characters(value) >= rule.get<size_t>();
    if (key == "maxLength") return characters(value) <= rule.get<size_t>();
    if (key == "pattern") return std::regex_search(value, std::regex(rule.get<std::string>()));
    if (key != "format") return true;
    static const std::map<std::string, std::string> shapes = {
        {"date", "\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])"},
        {"time", "\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)"},
        {"date-time", "\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)"},
        {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
        {"email", "[^@ ]+@[^@ ]+\\.[^@ .]+"},
        {"ipv4", "\\d+\\.\\d+\\.\\d+\\.\\d+"},
        {"uri", "[a-zA-Z][a-zA-Z0-9+.-]*:[^ ]+"}};
    return std::regex_match(value, std::regex(shapes.at(rule.get<std::string>())));
  }
  [[nodiscard]] std::string array_problem(const std::string& key, const Json& rule, const Json& schema,
                                          const Json& value, const std::string& at) const {
    if (key == "minItems" && value.size() < rule.get<size_t>()) return at + " has too few items";
    if (key == "maxItems" && value.size() > rule.get<size_t>()) return at + " has too many items";
    const size_t prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string place = at + "[" + std::to_string(i) + "]";
      std::string wrong;
      if (key == "prefixItems" && i < prefix) wrong = check(rule[i], value[i], place);
      if (key == "items" && i >= prefix) wrong = check(rule, value[i], place);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }
  [[nodiscard]] std::string object_problem(const std::string& key, const Json& rule, const Json& schema,
                                           const Json& value, const std::string& at) const {
    if (key == "minProperties" && value.size() < rule.get<size_t>()) return at + " has too few members";
    if (key == "maxProperties" && value.size() > rule.get<size_t>()) return at + " has too many members";
    if (key == "required") {
      for (const Json& name : rule) {
        if (!value.contains(name.get<std::string>())) return at + " lacks " + name.dump();
      }
    }
    for (const auto& [name, one] : value.items()) {
      const bool named = schema.contains("properties") && schema["properties"].contains(name);
      bool patterned = false;
      if (schema.contains("patternProperties")) {
        for (const auto& [pattern, inner] : schema["patternProperties"].items()) {
          if (!std::regex_search(name, std::regex(pattern))) continue;
          patterned = true;
          if (key == "patternProperties") {
            if (const auto wrong = check(inner, one, at + "." + name); !wrong.empty()) return wrong;
          }
        }
      }
      std::string wrong;
      if (key == "properties" && named) wrong = check(rule[name], one, at + "." + name);
      if (key == "additionalProperties" && !named && !patterned) wrong = check(rule, one, at + "." + name);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }
  Json root_;
};

}  // namespace tensorfold::testing
