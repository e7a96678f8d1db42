// Conversations and tools as requests carry them, checked.
#pragma once

#include <string>

#include "server/json_body.h"

namespace tensorfold::server {

/// Checks `messages` (roles, content as text, tool calls) and returns them; the template's own normalisation follows.
/// Throws ApiError (400) that names the message.
Json checked_messages(const Json& body);

enum class ToolChoice { automatic, none, required, named };

/// What may be called, and whether it must be.
struct ToolSettings {
  Json offered = Json::array();  ///< as the template sees them; empty: none
  ToolChoice choice = ToolChoice::automatic;
  std::string name;      ///< with ToolChoice::named
  bool parallel = true;  ///< false: at most one call
  [[nodiscard]] bool forced() const { return choice == ToolChoice::required || choice == ToolChoice::named; }
};

/// Reads tools, tool_choice and parallel_tool_calls. Throws ApiError (400).
ToolSettings read_tools(const Json& body);

/// The name of a tool in either spelling: function.name or name.
std::string tool_name(const Json& tool);

/// Refuses images, audio and video anywhere at the top level of the body. Throws ApiError (400).
void refuse_media(const Json& body);

}  // namespace tensorfold::server
