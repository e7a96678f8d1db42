#include "text/offered_tools.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "text/jinja/json_value.h"

namespace tensorfold::text {

namespace {

using jinja::Value;

bool equal_ignoring_case(std::string_view left, std::string_view right) {
  const auto lower = [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter;
  };
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [&](char first, char second) { return lower(first) == lower(second); });
}

const Value* find_dict(const Value& mapping, const char* key) {
  const Value* found = mapping.is_dict() ? mapping.dict().find(key) : nullptr;
  return found != nullptr && found->is_dict() ? found : nullptr;
}

OfferedTool read_tool(const Value& tool) {
  const Value* function = find_dict(tool, "function");
  const Value& description = function != nullptr ? *function : tool;
  const Value* name = description.is_dict() ? description.dict().find("name") : nullptr;
  if (name == nullptr || !name->is_string() || name->text().empty()) {
    fail(ErrorKind::invalid_request, "every tool must have a function name");
  }
  OfferedTool offered;
  offered.name = name->text().str();
  const Value* parameters = find_dict(description, "parameters");
  const Value* properties = parameters != nullptr ? find_dict(*parameters, "properties") : nullptr;
  if (properties == nullptr) return offered;
  for (const auto& [key, schema] : properties->dict().entries()) {
    const Value* type = schema.is_dict() ? schema.dict().find("type") : nullptr;
    if (type == nullptr) continue;
    std::vector<std::string>& types = offered.parameter_types[key.text().str()];
    if (type->is_string()) types.push_back(type->text().str());
    if (!type->is_list()) continue;
    for (const Value& one : type->sequence().items) types.push_back(one.is_string() ? one.text().str() : std::string());
  }
  return offered;
}

bool is_of_type(const Value& value, std::string_view type) {
  if (type == "array") return value.is_list();
  if (type == "object") return value.is_dict();
  if (type == "boolean") return value.is_bool();
  if (type == "integer") return value.is_int();
  if (type == "number") return value.is_int() || value.is_float();
  return type == "null" && value.is_none();
}

std::optional<Value> parse_as(std::string_view text, std::string_view type) {
  try {
    Value value = jinja::parse_json(text);
    if (is_of_type(value, type)) return value;
  } catch (const Error&) {
    return std::nullopt;  // text that is not JSON stays text
  }
  return std::nullopt;
}

std::optional<Value> read_python_constant(std::string_view text, std::string_view type) {
  if (type == "boolean" && text == "True") return Value(true);
  if (type == "boolean" && text == "False") return Value(false);
  if (type == "null" && text == "None") return Value();
  return std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

}  // namespace

OfferedTools::OfferedTools(const Value& tools) {
  if (tools.is_none()) return;
  if (!tools.is_list()) fail(ErrorKind::invalid_request, "tools must be a list");
  for (const Value& tool : tools.sequence().items) tools_.push_back(read_tool(tool));
}

const OfferedTool* OfferedTools::find(std::string_view name) const {
  const auto exact = std::find_if(tools_.begin(), tools_.end(), [&](const auto& tool) { return tool.name == name; });
  if (exact != tools_.end()) return &*exact;
  const auto found = std::find_if(tools_.begin(), tools_.end(),
                                  [&](const auto& tool) { return equal_ignoring_case(tool.name, name); });
  return found != tools_.end() ? &*found : nullptr;
}

bool is_text_parameter(const OfferedTool& tool, const std::string& parameter) {
  static constexpr std::array<std::string_view, 6> typed = {"array", "object", "boolean", "integer", "number", "null"};
  const auto types = tool.parameter_types.find(parameter);
  return types == tool.parameter_types.end() || types->second.empty() ||
         !std::all_of(types->second.begin(), types->second.end(), [](const std::string& type) {
           return std::find(typed.begin(), typed.end(), type) != typed.end();
         });
}

std::string typed_argument(const OfferedTool& tool, const std::string& parameter, std::string_view text,
                           ConstantSpelling spelling) {
  if (!is_text_parameter(tool, parameter)) {
    for (const std::string& type : tool.parameter_types.at(parameter)) {
      auto value = parse_as(text, type);
      if (!value && type == "array") value = parse_as(std::string(text) + "]", type);
      if (!value && type == "object") value = parse_as(std::string(text) + "}", type);
      if (!value && spelling == ConstantSpelling::json_and_python) value = read_python_constant(trimmed(text), type);
      if (value) return compact_json(*value);
    }
  }
  return "\"" + escaped_json(text) + "\"";
}

std::string compact_json(const Value& value) {
  jinja::JsonStyle style;
  style.item_separator = ",";
  style.key_separator = ":";
  return jinja::dump_json(value, style).str();
}

std::string escaped_json(std::string_view text) {
  const std::string quoted = jinja::dump_json(Value(text)).str();
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace tensorfold::text
