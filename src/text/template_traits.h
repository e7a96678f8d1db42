// What a server has to know about a chat template, found out once by reading its source and by trial renderings.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace tensorfold::text {

/// How a template writes a tool call: opener, lead, the function's name, tail.
struct CallFormat {
  std::string opener;  ///< a control token, such as <tool_call>
  std::string lead;    ///< text between the opener and the name
  std::string tail;    ///< the one character behind the name; empty if the call ends there
  friend bool operator==(const CallFormat&, const CallFormat&) = default;
};

struct TemplateTraits {
  bool renders_late_system = false;  ///< a system message that is not first keeps its role; else it becomes a user's
  bool arguments_as_text = false;    ///< tool-call arguments go in as JSON text, not as a mapping
  std::optional<CallFormat> call_format;   ///< nothing if calls have no known opener
  std::vector<std::string> effort_levels;  ///< the levels that the source names, lowest first
};

/// Renders messages (a list) with tools (a list or None) and without a generation prompt; throws Error where the
/// template refuses.
using TrialRender = std::function<std::string(const jinja::Value& messages, const jinja::Value& tools)>;

TemplateTraits find_template_traits(std::string_view source, const TrialRender& render);

/// The level to hand to the template for an asked one (minimal, low, medium, high, xhigh, max): itself if the template
/// names it, else the nearest named one, ties upward. A template that names none hears max as xhigh.
/// Throws Error(invalid_request) for an unknown word.
std::string effort_for_template(const TemplateTraits& traits, std::string_view asked);

}  // namespace tensorfold::text
