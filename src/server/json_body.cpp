#include "server/json_body.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "server/api_error.h"

namespace tensorfold::server {
namespace {

constexpr size_t deepest = 128;
constexpr size_t most_members = 4096;

/// One pass over the text before it is parsed: depth (destruction and printing recurse) and members an object (look-up
/// is linear, so building is quadratic). Malformed text is left to the parser.
void check_shape(std::string_view body) {
  struct Level {
    bool object = false;
    size_t members = 0;
  };
  std::vector<Level> levels;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    switch (c) {
      case '"':
        in_string = true;
        break;
      case '{':
      case '[':
        if (levels.size() == deepest) throw bad_request(fmt::format("the body nests deeper than {} levels", deepest));
        levels.push_back({c == '{', 0});
        break;
      case '}':
      case ']':
        if (!levels.empty()) levels.pop_back();
        break;
      case ',':
        if (!levels.empty() && levels.back().object && ++levels.back().members >= most_members) {
          throw bad_request(fmt::format("an object of the body has more than {} members", most_members));
        }
        break;
      default:
        break;
    }
  }
}

/// The library's own message ends in what a client needs: where and what.
std::string parse_problem(const std::string& message) {
  const size_t at = message.find("parse error");
  return at == std::string::npos ? message : message.substr(at);
}

/// The surrogate that an escape \uXXXX at `at` stands for; 0: it is no such escape.
uint32_t surrogate_at(std::string_view body, size_t at) {
  if (at + 6 > body.size() || body[at] != '\\' || body[at + 1] != 'u') return 0;
  uint32_t value = 0;
  const char* end = body.data() + at + 6;
  const auto read = std::from_chars(body.data() + at + 2, end, value, 16);
  return read.ptr == end && value >= 0xD800 && value <= 0xDFFF ? value : 0;
}

/// Clients that cut a text inside a character send half of a pair; it becomes U+FFFD, as bytes that are not UTF-8 do
/// elsewhere. Empty: there is nothing to repair.
std::string without_lone_surrogates(std::string_view body) {
  std::string repaired;
  for (size_t at = body.find("\\u"); at != std::string_view::npos; at = body.find("\\u", at)) {
    size_t slashes = 0;
    while (slashes < at && body[at - slashes - 1] == '\\') ++slashes;
    const uint32_t first = slashes % 2 == 0 ? surrogate_at(body, at) : 0;
    const uint32_t second = first != 0 && first < 0xDC00 ? surrogate_at(body, at + 6) : 0;
    if (first == 0) {
      at += 2;
    } else if (second >= 0xDC00) {
      at += 12;
    } else {
      if (repaired.empty()) repaired = body;
      repaired.replace(at, 6, "\\ufffd");
      at += 6;
    }
  }
  return repaired;
}

[[noreturn]] void refuse(std::string_view name, std::string_view wanted) {
  throw bad_request(fmt::format("{} must be {}", name, wanted), std::string(name));
}

/// A finite number from a number or a numeric string.
std::optional<double> as_number(const Json& value) {
  if (value.is_number()) {
    const double number = value.get<double>();
    if (std::isfinite(number)) return number;
    return std::nullopt;
  }
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) return number;
  }
  const auto number = as_number(value);
  if (!number || *number != std::floor(*number) || std::abs(*number) > 9007199254740992.0) return std::nullopt;
  return static_cast<int64_t>(*number);
}

}  // namespace

Json parse_body(std::string_view body) {
  // The library would take a zero byte for the end of the text.
  if (const size_t zero = body.find('\0'); zero != std::string_view::npos) {
    throw bad_request(fmt::format("the body is not JSON at byte {}: it holds a zero byte", zero + 1));
  }
  check_shape(body);
  const std::string repaired = without_lone_surrogates(body);
  if (!repaired.empty()) body = repaired;
  try {
    return Json::parse(body.begin(), body.end());
  } catch (const Json::parse_error& failure) {
    throw bad_request(fmt::format("the body is not JSON at byte {}: {}", failure.byte, parse_problem(failure.what())));
  } catch (const Json::out_of_range&) {
    throw bad_request("a number in the body is too large");
  } catch (const Json::exception&) {
    throw bad_request("the body is not JSON");
  }
}

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

const Json* member(const Json& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(name));
  if (found == object.end() || found->is_null()) return nullptr;
  return &*found;
}

void copy_members(const Json& from, std::span<const char* const> names, Json& to) {
  for (const char* name : names) {
    if (const Json* value = member(from, name)) to[name] = *value;
  }
}

std::optional<int64_t> integer_field(const Json& object, std::string_view name, int64_t lowest, int64_t highest) {
  const Json* value = member(object, name);
  if (value == nullptr) return std::nullopt;
  const auto number = as_integer(*value);
  if (!number) refuse(name, "an integer or null");
  if (*number < lowest || *number > highest) {
    if (highest == std::numeric_limits<int64_t>::max()) refuse(name, fmt::format("at least {}", lowest));
    refuse(name, fmt::format("between {} and {}", lowest, highest));
  }
  return number;
}

std::optional<double> number_field(const Json& object, std::string_view name, double lowest, double highest) {
  const Json* value = member(object, name);
  if (value == nullptr) return std::nullopt;
  const auto number = as_number(*value);
  if (!number) refuse(name, "a finite number or null");
  if (*number < lowest || *number > highest) refuse(name, fmt::format("between {} and {}", lowest, highest));
  return number;
}

std::optional<bool> boolean_field(const Json& object, std::string_view name) {
  const Json* value = member(object, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(name, "true, false or null");
  return value->get<bool>();
}

std::optional<std::string> string_field(const Json& object, std::string_view name) {
  const Json* value = member(object, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(name, "a string or null");
  return value->get<std::string>();
}

std::vector<std::string> strings_field(const Json& object, std::string_view name) {
  const Json* value = member(object, name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) refuse(name, "a string, a list of strings or null");
  std::vector<std::string> strings;
  for (const Json& one : *value) {
    if (!one.is_string()) refuse(name, "a string, a list of strings or null");
    strings.push_back(one.get<std::string>());
  }
  return strings;
}

}  // namespace tensorfold::server
