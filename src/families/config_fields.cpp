#include "families/config_fields.h"

#include <cmath>

namespace tensorfold::families {

using nlohmann::json;

const json* ConfigFields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigFields::refuse(const char* name, const char* wanted) {
  const json* value = find(name);
  if (value == nullptr) {
    problems_.add("{} is missing", name);
  } else {
    problems_.add("{} is {}, not {}", name, format::printable_json(*value), wanted);
  }
}

int32_t ConfigFields::integer(const char* name, int32_t least, int32_t most, std::optional<int32_t> fallback) {
  const json* value = find(name);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_number_integer() && *value >= least && *value <= most) {
    return value->get<int32_t>();
  }
  refuse(name, fmt::format("an integer from {} to {}", least, most).c_str());
  return fallback.value_or(least);
}

double ConfigFields::number(const char* name, double least, double most, std::optional<double> fallback) {
  const json* value = find(name);
  if (value == nullptr && fallback) return *fallback;
  const double given = value != nullptr && value->is_number() ? value->get<double>() : std::nan("");
  if (given >= least && given <= most) return given;
  refuse(name, fmt::format("a number from {} to {}", least, most).c_str());
  return fallback.value_or(least);
}

bool ConfigFields::boolean(const char* name, bool fallback) {
  const json* value = find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  refuse(name, "true or false");
  return fallback;
}

std::string ConfigFields::text(const char* name, const std::string& fallback) {
  const json* value = find(name);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  refuse(name, "a string");
  return fallback;
}

std::vector<std::string> ConfigFields::texts(const char* name) {
  const json* value = find(name);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  if (!value->is_array()) refuse(name, "a list of strings");
  for (const json& element : value->is_array() ? *value : json::array()) {
    if (element.is_string()) {
      texts.push_back(element.get<std::string>());
    } else {
      refuse(name, "a list of strings");
      break;
    }
  }
  return texts;
}

const json* ConfigFields::object(const char* name) {
  const json* value = find(name);
  if (value == nullptr || value->is_object()) return value;
  refuse(name, "an object");
  return nullptr;
}

void ConfigFields::serve(const char* name, bool served) {
  if (served) return;
  const json* value = find(name);
  problems_.add("{} {} is not served", name,
                value == nullptr ? std::string("(absent)") : format::printable_json(*value));
}

}  // namespace tensorfold::families
