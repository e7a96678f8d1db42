#include "server/messages.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "server/api_error.h"

namespace tensorfold::server {
namespace {

constexpr size_t most_messages = 8192;
constexpr size_t most_tools = 1024;
constexpr std::array media_keys = {"image", "images",      "image_url", "input_image",
                                   "audio", "input_audio", "video",     "video_url"};

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw bad_request(where + " " + what, "messages");
}

void check_content(const Json* content, const std::string& where) {
  if (content == nullptr || content->is_string()) return;
  if (!content->is_array()) refuse(where + ".content", "must be a string, a list of text parts or null");
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    const std::string place = fmt::format("{}.content[{}]", where, i);
    if (!part.is_object()) refuse(place, "must be an object");
    const Json* type = member(part, "type");
    if (type == nullptr || !type->is_string()) refuse(place, "needs a type");
    if (*type != "text") {
      refuse(place, fmt::format("has type '{}'; this model reads text only", type->get<std::string>()));
    }
    const Json* value = member(part, "text");
    if (value == nullptr || !value->is_string()) refuse(place, "needs a string 'text'");
  }
}

void check_calls(const Json& calls, const std::string& where) {
  if (!calls.is_array()) refuse(where + ".tool_calls", "must be a list");
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string place = fmt::format("{}.tool_calls[{}]", where, i);
    if (!calls[i].is_object()) refuse(place, "must be an object");
    if (tool_name(calls[i]).empty()) refuse(place, "needs a function name");
  }
}

void check_message(const Json& message, const std::string& where) {
  if (!message.is_object()) refuse(where, "must be an object");
  const Json* role = member(message, "role");
  if (role == nullptr || !role->is_string()) refuse(where, "needs a role");
  const auto& name = role->get_ref<const std::string&>();
  if (name != "system" && name != "developer" && name != "user" && name != "assistant" && name != "tool") {
    refuse(where, fmt::format("has the unknown role '{}'", name));
  }
  for (const char* key : media_keys) {
    const Json* media = member(message, key);
    if (media != nullptr && !media->empty()) refuse(where, fmt::format("has '{}'; this model reads text only", key));
  }
  check_content(member(message, "content"), where);
  if (const Json* calls = member(message, "tool_calls")) check_calls(*calls, where);
  const Json* answers = member(message, "tool_call_id");
  if (name == "tool" && (answers == nullptr || !answers->is_string())) {
    refuse(where, "needs a tool_call_id: the id of the call that it answers");
  }
}

}  // namespace

Json checked_messages(const Json& body) {
  const Json* messages = member(body, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    throw bad_request("messages must be a non-empty list", "messages");
  }
  if (messages->size() > most_messages) {
    throw bad_request(fmt::format("messages has more than {} entries", most_messages), "messages");
  }
  Json checked = *messages;
  for (size_t i = 0; i < checked.size(); ++i) {
    Json& message = checked[i];
    check_message(message, fmt::format("messages[{}]", i));
    // Some clients send thinking back under its other name.
    const Json* reasoning = member(message, "reasoning");
    if (reasoning != nullptr && reasoning->is_string() && member(message, "reasoning_content") == nullptr) {
      message["reasoning_content"] = *reasoning;
    }
  }
  return checked;
}

std::string tool_name(const Json& tool) {
  const Json* function = member(tool, "function");
  const Json* name = member(function != nullptr ? *function : tool, "name");
  return name != nullptr && name->is_string() ? name->get<std::string>() : std::string();
}

namespace {

constexpr size_t longest_tool_name = 256;

/// What calls can carry in every syntax: no blanks, no brackets, no quotes.
bool is_tool_name(const std::string& name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.:/").find(c) != std::string_view::npos;
  };
  return name.size() <= longest_tool_name && std::all_of(name.begin(), name.end(), fits);
}

Json read_offered(const Json& body) {
  const Json* tools = member(body, "tools");
  if (tools == nullptr) return Json::array();
  if (!tools->is_array()) throw bad_request("tools must be a list", "tools");
  if (tools->size() > most_tools) throw bad_request(fmt::format("tools has more than {} entries", most_tools), "tools");
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string place = fmt::format("tools[{}]", i);
    if (!tool.is_object()) throw bad_request(place + " must be an object", "tools");
    const std::string name = tool_name(tool);
    if (name.empty()) throw bad_request(place + " needs a function name", "tools");
    if (!is_tool_name(name)) {
      throw bad_request(
          fmt::format("{}.function.name must be at most {} letters, digits and _ - . : /", place, longest_tool_name),
          "tools");
    }
    const Json* function = member(tool, "function");
    const Json* parameters = member(function != nullptr ? *function : tool, "parameters");
    if (parameters != nullptr && !parameters->is_object()) {
      throw bad_request(place + ".function.parameters must be an object", "tools");
    }
  }
  return *tools;
}

/// Leaves only the named tool.
void choose(ToolSettings& settings, const std::string& name) {
  Json chosen = Json::array();
  for (const Json& tool : settings.offered) {
    if (tool_name(tool) == name) chosen.push_back(tool);
  }
  if (chosen.empty())
    throw bad_request(fmt::format("tool_choice names '{}', which is not offered", name), "tool_choice");
  settings.offered = std::move(chosen);
  settings.choice = ToolChoice::named;
  settings.name = name;
}

/// OpenAI's allowed_tools, flat as Responses has it or nested as chat has it: the offer shrinks to the named ones. The
/// mode, which is what is left of the choice.
Json shrink_offer(const Json& choice, ToolSettings& settings) {
  const Json* nested = member(choice, "allowed_tools");
  const Json& allowed = nested != nullptr ? *nested : choice;
  const Json* tools = member(allowed, "tools");
  if (tools == nullptr || !tools->is_array() || tools->empty()) {
    throw bad_request("tool_choice: allowed_tools needs a non-empty list 'tools'", "tool_choice");
  }
  Json kept = Json::array();
  for (const Json& tool : settings.offered) {
    const std::string name = tool_name(tool);
    if (std::any_of(tools->begin(), tools->end(), [&](const Json& one) { return tool_name(one) == name; })) {
      kept.push_back(tool);
    }
  }
  for (const Json& one : *tools) {
    const std::string name = tool_name(one);
    const bool offered =
        std::any_of(kept.begin(), kept.end(), [&](const Json& tool) { return tool_name(tool) == name; });
    if (!offered) {
      throw bad_request(fmt::format("tool_choice allows '{}', which is not offered", name.empty() ? dump(one) : name),
                        "tool_choice");
    }
  }
  settings.offered = std::move(kept);
  const std::string mode = string_field(allowed, "mode").value_or("auto");
  if (mode != "auto" && mode != "required") {
    throw bad_request("tool_choice: the mode of allowed_tools must be auto or required", "tool_choice");
  }
  return mode;
}

void read_choice(const Json& choice, ToolSettings& settings) {
  if (const Json* kind = member(choice, "type"); kind != nullptr && *kind == "allowed_tools") {
    return read_choice(shrink_offer(choice, settings), settings);
  }
  const Json* type = choice.is_object() ? member(choice, "type") : &choice;
  if (type == nullptr || !type->is_string())
    throw bad_request("tool_choice must be a string or an object", "tool_choice");
  const auto& word = type->get_ref<const std::string&>();
  if (word == "none") {
    settings.choice = ToolChoice::none;
    settings.offered = Json::array();
  } else if (word == "auto") {
    settings.choice = ToolChoice::automatic;
  } else if (word == "required" || word == "any") {
    settings.choice = ToolChoice::required;
  } else if (choice.is_object() && (word == "function" || word == "tool")) {
    choose(settings, tool_name(choice));
  } else {
    throw bad_request(fmt::format("tool_choice '{}' is not none, auto, required or a function", word), "tool_choice");
  }
  if (settings.forced() && settings.offered.empty()) {
    throw bad_request("tool_choice asks for a call, but no tools are offered", "tool_choice");
  }
}

}  // namespace

ToolSettings read_tools(const Json& body) {
  ToolSettings settings;
  settings.offered = read_offered(body);
  if (const Json* choice = member(body, "tool_choice")) read_choice(*choice, settings);
  settings.parallel = boolean_field(body, "parallel_tool_calls").value_or(true);
  return settings;
}

void refuse_media(const Json& body) {
  for (const char* key : media_keys) {
    const Json* media = member(body, key);
    if (media != nullptr && !media->empty()) {
      throw bad_request(fmt::format("'{}' is not supported: this model reads text only", key), key);
    }
  }
  if (const Json* modalities = member(body, "modalities")) {
    if (*modalities != Json::array({"text"})) throw bad_request("modalities must be [\"text\"]", "modalities");
  }
}

}  // namespace tensorfold::server
