#include "server/anthropic_request.h"

#include <array>

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/generation_fields.h"
#include "server/structured_output.h"

namespace tensorfold::server {
namespace {

/// Claude Code puts a line with a checksum of its own on top of the system prompt; it differs in every request and
/// would keep any two prompts from sharing a prefix.
bool is_billing_line(const std::string& text) { return text.rfind("x-anthropic-billing-header:", 0) == 0; }

const std::string& type_of(const Json& block, const std::string& where) {
  const Json* type = member(block, "type");
  if (type == nullptr || !type->is_string()) throw bad_request(where + " needs a type", "messages");
  return type->get_ref<const std::string&>();
}

const std::string& text_of(const Json& block, const char* key, const std::string& where) {
  const Json* text = member(block, key);
  if (text == nullptr || !text->is_string()) {
    throw bad_request(fmt::format("{} needs a string '{}'", where, key), "messages");
  }
  return text->get_ref<const std::string&>();
}

/// A string, or text blocks joined with nothing between.
std::string plain_text(const Json* content, const std::string& where) {
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) throw bad_request(where + " must be a string or a list of blocks", "messages");
  std::string text;
  for (const Json& block : *content) {
    if (type_of(block, where) != "text") {
      throw bad_request(
          fmt::format("{}: '{}' blocks are not supported; this model reads text only", where, type_of(block, where)),
          "messages");
    }
    text += text_of(block, "text", where);
  }
  return text;
}

std::string system_text(const Json& system) {
  if (system.is_string()) return system.get<std::string>();
  if (!system.is_array()) throw bad_request("system must be a string or a list of text blocks", "system");
  std::string text;
  for (const Json& block : system) {
    if (type_of(block, "system") != "text") throw bad_request("system may hold text blocks only", "system");
    const std::string& piece = text_of(block, "text", "system");
    if (is_billing_line(piece)) continue;
    if (!text.empty()) text += "\n\n";
    text += piece;
  }
  return text;
}

void append_user(const Json& content, const std::string& where, Json& messages) {
  std::string text;
  bool has_text = false;
  for (const Json& block : content) {
    const std::string& type = type_of(block, where);
    if (type == "tool_result") {
      Json result = {{"role", "tool"}, {"content", plain_text(member(block, "content"), where)}};
      result["tool_call_id"] = text_of(block, "tool_use_id", where);
      messages.push_back(std::move(result));
    } else if (type == "text") {
      text += text_of(block, "text", where);
      has_text = true;
    } else {
      throw bad_request(fmt::format("{}: '{}' blocks are not supported; this model reads text only", where, type),
                        "messages");
    }
  }
  if (has_text || content.empty()) messages.push_back({{"role", "user"}, {"content", text}});
}

void append_assistant(const Json& content, const std::string& where, Json& messages) {
  Json message = {{"role", "assistant"}, {"content", ""}};
  std::string text;
  std::string thinking;
  for (const Json& block : content) {
    const std::string& type = type_of(block, where);
    if (type == "text") {
      text += text_of(block, "text", where);
    } else if (type == "thinking") {
      thinking += text_of(block, "thinking", where);
    } else if (type == "tool_use") {
      const Json* input = member(block, "input");
      Json call = {
          {"type", "function"},
          {"function",
           {{"name", text_of(block, "name", where)}, {"arguments", input != nullptr ? *input : Json::object()}}}};
      if (const Json* id = member(block, "id")) call["id"] = *id;
      message["tool_calls"].push_back(std::move(call));
    } else {
      throw bad_request(fmt::format("{}: '{}' blocks are not supported", where, type), "messages");
    }
  }
  message["content"] = text;
  if (!thinking.empty()) message["reasoning_content"] = thinking;
  messages.push_back(std::move(message));
}

Json chat_messages(const Json& body) {
  Json messages = Json::array();
  if (const Json* system = member(body, "system")) {
    messages.push_back({{"role", "system"}, {"content", system_text(*system)}});
  }
  const Json* turns = member(body, "messages");
  if (turns == nullptr || !turns->is_array() || turns->empty()) {
    throw bad_request("messages must be a non-empty list", "messages");
  }
  for (size_t i = 0; i < turns->size(); ++i) {
    const Json& turn = (*turns)[i];
    const std::string where = fmt::format("messages[{}]", i);
    const Json* role = member(turn, "role");
    if (role == nullptr || (*role != "user" && *role != "assistant" && *role != "system")) {
      throw bad_request(where + " needs the role user or assistant", "messages");
    }
    const Json* content = member(turn, "content");
    if (content == nullptr || (!content->is_string() && !content->is_array())) {
      throw bad_request(where + ".content must be a string or a list of blocks", "messages");
    }
    if (content->is_string() || *role == "system") {
      messages.push_back({{"role", *role}, {"content", plain_text(content, where)}});
    } else if (*role == "user") {
      append_user(*content, where, messages);
    } else {
      append_assistant(*content, where, messages);
    }
  }
  return messages;
}

/// Of the tools that Anthropic defines, some are run by its servers, the others by the client.
bool runs_at_anthropic(const std::string& type) {
  for (const char* kind : {"web_search", "web_fetch", "code_execution", "tool_search", "mcp", "advisor"}) {
    if (type.rfind(kind, 0) == 0) return true;
  }
  return false;
}

/// Fields about what other servers keep or do for a client.
void refuse_server_side(const Json& body) {
  for (const char* name : {"mcp_servers", "container"}) {
    const Json* value = member(body, name);
    const bool nothing = value == nullptr || (value->is_structured() && value->empty());
    if (!nothing) throw bad_request(fmt::format("{} is not supported", name), name);
  }
  const Json* management = member(body, "context_management");
  const Json* edits = management != nullptr ? member(*management, "edits") : nullptr;
  if (edits == nullptr) return;
  for (const Json& edit : *edits) {
    const Json* type = member(edit, "type");
    const Json* keep = member(edit, "keep");
    const bool thinking =
        type != nullptr && type->is_string() && type->get_ref<const std::string&>().rfind("clear_thinking_", 0) == 0;
    if (thinking && keep != nullptr && (*keep == "all" || *keep == Json{{"type", "all"}})) continue;
    throw bad_request(
        "context_management: the only edit supported is clear_thinking with keep \"all\"; nothing is "
        "dropped from a conversation here",
        "context_management");
  }
}

Json chat_tools(const Json& tools) {
  if (!tools.is_array()) throw bad_request("tools must be a list", "tools");
  Json offered = Json::array();
  for (const Json& tool : tools) {
    const Json* type = member(tool, "type");
    if (type != nullptr && *type != "custom") {
      const std::string name = type->is_string() ? type->get<std::string>() : dump(*type);
      const char* reason = runs_at_anthropic(name) ? "run on Anthropic's servers and are not supported"
                                                   : "have no schema here and are not supported; describe the tool "
                                                     "as a custom one with an input_schema";
      throw bad_request(fmt::format("tools of type '{}' {}", name, reason), "tools");
    }
    Json function;
    for (const auto& [theirs, ours] :
         {std::pair{"name", "name"}, {"description", "description"}, {"input_schema", "parameters"}}) {
      if (const Json* value = member(tool, theirs)) function[ours] = *value;
    }
    offered.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return offered;
}

void set_tool_choice(const Json& choice, Json& chat) {
  const Json* type = member(choice, "type");
  if (type == nullptr || !type->is_string()) throw bad_request("tool_choice needs a type", "tool_choice");
  if (*type == "tool") {
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", string_field(choice, "name").value_or("")}}}};
  } else if (*type == "any" || *type == "auto" || *type == "none") {
    chat["tool_choice"] = *type == "any" ? Json("required") : *type;
  } else {
    throw bad_request("tool_choice must be auto, any, tool or none", "tool_choice");
  }
  if (boolean_field(choice, "disable_parallel_tool_use").value_or(false)) chat["parallel_tool_calls"] = false;
}

void set_thinking(const Json& body, Json& chat) {
  bool on = false;
  if (const Json* thinking = member(body, "thinking")) {
    const Json* type = member(*thinking, "type");
    if (type == nullptr || (*type != "enabled" && *type != "disabled" && *type != "adaptive")) {
      throw bad_request("thinking.type must be enabled, disabled or adaptive", "thinking");
    }
    on = *type != "disabled";
    if (const auto budget = integer_field(*thinking, "budget_tokens", 1)) chat["thinking_budget"] = *budget;
  }
  chat["chat_template_kwargs"]["enable_thinking"] = on;
  const Json* config = member(body, "output_config");
  if (config != nullptr) {
    if (const auto effort = string_field(*config, "effort")) chat["reasoning_effort"] = *effort;
  }
  // output_format is the older name.
  const Json* format = config != nullptr ? member(*config, "format") : nullptr;
  if (format == nullptr) format = member(body, "output_format");
  if (format == nullptr) return;
  const Json* schema = member(*format, "schema");
  if (schema == nullptr) throw bad_request("output_config.format needs a schema", "output_config");
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "output"}, {"schema", *schema}}}};
}

}  // namespace

Json chat_from_messages(const Json& body, bool counting) {
  if (!body.is_object()) throw bad_request("the body must be a JSON object");
  Json chat = Json::object();
  constexpr std::array same = {"model",      "temperature",      "top_p",   "top_k", "min_p", "seed", "stream", "draft",
                               "ignore_eos", "return_token_ids", "priority"};
  copy_members(body, same, chat);
  copy_members(body, output_format_fields, chat);
  copy_restricting_fields(body, chat);
  refuse_server_side(body);
  const auto limit = integer_field(body, "max_tokens", 1);
  if (!limit && !counting) throw bad_request("max_tokens is needed", "max_tokens");
  if (limit && !counting) chat["max_tokens"] = *limit;
  if (const Json* stops = member(body, "stop_sequences")) chat["stop"] = *stops;
  chat["messages"] = chat_messages(body);
  if (const Json* tools = member(body, "tools"); tools != nullptr && !tools->empty())
    chat["tools"] = chat_tools(*tools);
  if (const Json* choice = member(body, "tool_choice")) set_tool_choice(*choice, chat);
  set_thinking(body, chat);
  return chat;
}

}  // namespace tensorfold::server
