// JSON text to template values and back, with the key order and the spelling that Python's json module has.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "text/jinja/value.h"

namespace tensorfold::text::jinja {

struct JsonLimits {
  std::size_t depth = 200;                      ///< nested arrays and objects
  std::size_t bytes = std::size_t{256} << 20U;  ///< size of the text
};

/// Parses a JSON document; objects keep their key order. Strings and keys are marked as `untrusted` says.
/// Throws Error(invalid_request) with the byte offset of what is wrong.
Value parse_json(std::string_view json, bool untrusted = true, const JsonLimits& limits = {});

/// The value of a parsed document.
Value from_json(const nlohmann::ordered_json& json, bool untrusted = true);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  ///< white space of one level; all on one line if absent
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

/// Python's json.dumps. The text is marked as a whole if any of it came from the request.
/// Throws TemplateFailure for values that JSON cannot spell.
MarkedText dump_json(const Value& value, const JsonStyle& style = {});

}  // namespace tensorfold::text::jinja
