// The tools of a request, as far as reading calls needs them: names and the declared types of their parameters.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace tensorfold::text {

struct OfferedTool {
  std::string name;  ///< in the spelling of the request
  /// JSON Schema's type word or words; parameters without one are absent.
  std::map<std::string, std::vector<std::string>> parameter_types;
};

class OfferedTools {
 public:
  OfferedTools() = default;
  /// From the request's list of {"type": "function", "function": {...}} or flat {"name": ...}; None gives no tools.
  /// Throws Error(invalid_request) for a tool without a name.
  explicit OfferedTools(const jinja::Value& tools);

  [[nodiscard]] bool empty() const { return tools_.empty(); }
  [[nodiscard]] const std::vector<OfferedTool>& all() const { return tools_; }
  /// The tool of that name, whatever the case of its letters; nullptr if it was not offered.
  [[nodiscard]] const OfferedTool* find(std::string_view name) const;

 private:
  std::vector<OfferedTool> tools_;
};

/// Which words count as JSON constants.
enum class ConstantSpelling { json, json_and_python };

/// A parameter's text as compact JSON: the value of the first declared type that the text is one of (an array or object
/// may lack its last bracket), else a string with the text unchanged. Parameters that may be strings, or whose type is
/// not declared by name, are strings.
std::string typed_argument(const OfferedTool& tool, const std::string& parameter, std::string_view text,
                           ConstantSpelling spelling);

/// Whether the parameter is sent as a string whatever its text is.
bool is_text_parameter(const OfferedTool& tool, const std::string& parameter);

/// A value as compact JSON, and text as the inside of a JSON string (without quotes); other letters than ASCII stay.
std::string compact_json(const jinja::Value& value);
std::string escaped_json(std::string_view text);

}  // namespace tensorfold::text
