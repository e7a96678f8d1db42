#include "text/grammar/schema_merge.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/grammar/json_schema.h"

namespace tensorfold::text::grammar {
namespace {

constexpr size_t deepest = 64;
constexpr size_t most_branches = 512;

constexpr std::array annotations = {"$schema",    "$id",      "$comment",  "title",  "description",
                                    "default",    "example",  "examples",  "$defs",  "definitions",
                                    "deprecated", "readOnly", "writeOnly", "$anchor"};

bool is_annotation(std::string_view key) {
  return std::find(annotations.begin(), annotations.end(), key) != annotations.end();
}

/// Types as a set; nothing: any.
std::optional<std::set<std::string>> types_of(const Json& schema, const std::string& path) {
  const auto type = schema.find("type");
  if (type == schema.end()) return std::nullopt;
  std::set<std::string> types;
  const Json list = type->is_array() ? *type : Json::array({*type});
  for (const Json& one : list) {
    if (!one.is_string()) refuse_schema(path + "/type", "must be a type or a list of types");
    types.insert(one.get<std::string>());
  }
  return types;
}

class Merger {
 public:
  Merger(const FindReference& find, size_t& budget) : find_(find), budget_(budget) {}

  Json flatten(const Json& schema, const std::string& path, size_t depth) {
    if (depth > deepest) refuse_schema(path, "refers to itself without end");
    if (budget_ == 0) refuse_schema(path, "is too large a schema");
    --budget_;
    if (schema.is_boolean()) return schema;
    if (!schema.is_object()) refuse_schema(path, "must be a schema: an object or a boolean");
    Json result = Json::object();
    std::vector<Json> also;
    for (const auto& [key, value] : schema.items()) {
      if (key == "$ref") {
        if (!value.is_string()) refuse_schema(path + "/$ref", "must be a string");
        also.push_back(flatten(find_(value.get<std::string>(), path), path, depth + 1));
      } else if (key == "allOf") {
        if (!value.is_array() || value.empty()) refuse_schema(path + "/allOf", "must be a list of schemas");
        for (size_t i = 0; i < value.size(); ++i) {
          also.push_back(flatten(value[i], path + "/allOf/" + std::to_string(i), depth + 1));
        }
      } else if (key == "anyOf" || key == "oneOf") {
        if (!value.is_array() || value.empty()) refuse_schema(path + "/" + key, "must be a list of schemas");
        also.push_back({{"anyOf", value}});
      } else if (!is_annotation(key)) {
        result[key] = value;
      }
    }
    for (const Json& one : also) result = merge(result, one, path, depth + 1);
    return result;
  }

  Json merge(const Json& a, const Json& b, const std::string& path, size_t depth) {
    if (depth > deepest) refuse_schema(path, "refers to itself without end");
    if (a == false || b == false) return false;
    if (a == true) return b;
    if (b == true) return a;
    Json result = a;
    for (const auto& [key, value] : b.items()) {
      const auto mine = a.find(key);
      if (mine == a.end()) {
        result[key] = value;
      } else if (*mine != value) {
        result[key] = combine(key, *mine, value, path, depth);
      }
    }
    merge_properties(a, b, result);
    const auto types_a = types_of(a, path);
    const auto types_b = types_of(b, path);
    if (types_a && types_b) {
      const Json common = common_types(*types_a, *types_b);
      if (common.empty()) return false;
      result["type"] = common;
    }
    return result;
  }

 private:
  static Json common_types(const std::set<std::string>& a, const std::set<std::string>& b) {
    Json common = Json::array();
    for (const std::string& type : a) {
      if (b.contains(type)) common.push_back(type);
      // An integer is a number.
      if (type == "integer" && !b.contains(type) && b.contains("number")) common.push_back(type);
      if (type == "number" && !b.contains(type) && b.contains("integer") && !a.contains("integer")) {
        common.push_back("integer");
      }
    }
    return common;
  }

  static Json both(const Json& a, const Json& b) { return {{"allOf", Json::array({a, b})}}; }

  /// A property that only one side names must satisfy what the other side says about further properties.
  static void merge_properties(const Json& a, const Json& b, Json& result) {
    static const Json none = Json::object();
    const auto named = [](const Json& schema) -> const Json& {
      const auto found = schema.find("properties");
      return found != schema.end() && found->is_object() ? *found : none;
    };
    Json properties = Json::object();
    for (const auto& [key, value] : named(a).items()) {
      const auto other = named(b).find(key);
      properties[key] = other != named(b).end() ? *other == value ? value : both(value, *other) : further(b, value);
    }
    for (const auto& [key, value] : named(b).items()) {
      if (!named(a).contains(key)) properties[key] = further(a, value);
    }
    if (!properties.empty()) result["properties"] = std::move(properties);
  }

  static Json further(const Json& schema, const Json& value) {
    const auto found = schema.find("additionalProperties");
    if (found == schema.end() || *found == true) return value;
    return *found == false ? Json(false) : both(value, *found);
  }

  Json combine(const std::string& key, const Json& a, const Json& b, const std::string& path, size_t depth) {
    if (key == "properties" || key == "type") return a;  // merge() sees to them
    if (key == "required") {
      Json all = a;
      for (const Json& name : b) {
        if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
      }
      return all;
    }
    const bool numbers = a.is_number() && b.is_number();
    if (numbers && (key.rfind("min", 0) == 0 || key == "exclusiveMinimum")) {
      return a.get<double>() < b.get<double>() ? b : a;
    }
    if (numbers && (key.rfind("max", 0) == 0 || key == "exclusiveMaximum")) {
      return a.get<double>() < b.get<double>() ? a : b;
    }
    if (key == "additionalProperties" || key == "items") return both(a, b);
    if (key == "uniqueItems") return true;
    if (key == "enum" && a.is_array() && b.is_array()) {
      Json common = Json::array();
      for (const Json& value : a) {
        if (std::find(b.begin(), b.end(), value) != b.end()) common.push_back(value);
      }
      return common;
    }
    if (key == "anyOf") return product(a, b, path, depth);
    refuse_schema(path + "/" + key, "two different values that must both hold cannot be combined");
  }

  Json product(const Json& a, const Json& b, const std::string& path, size_t depth) {
    if (a.size() * b.size() > most_branches) refuse_schema(path + "/anyOf", "combines too many alternatives");
    Json ways = Json::array();
    for (const Json& one : a) {
      for (const Json& other : b) {
        Json way = merge(flatten(one, path, depth + 1), flatten(other, path, depth + 1), path, depth + 1);
        if (way != false) ways.push_back(std::move(way));
      }
    }
    if (ways.empty()) ways.push_back(false);
    return ways;
  }

  const FindReference& find_;
  size_t& budget_;
};

}  // namespace

Json flattened(const Json& schema, const std::string& path, const FindReference& find, size_t& budget) {
  return Merger(find, budget).flatten(schema, path, 0);
}

bool constrains(const Json& schema) {
  if (!schema.is_object()) return schema == false;
  return std::any_of(schema.items().begin(), schema.items().end(),
                     [](const auto& member) { return !is_annotation(member.key()); });
}

}  // namespace tensorfold::text::grammar
