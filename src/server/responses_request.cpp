#include "server/responses_request.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/generation_fields.h"
#include "server/structured_output.h"

namespace tensorfold::server {
namespace {

constexpr std::array refused_fields = {"background", "conversation", "prompt", "include", "top_logprobs"};

bool is_off(const Json& value) { return value.is_null() || value == false || value == 0 || value.empty(); }

void refuse_unsupported(const Json& body) {
  for (const char* name : refused_fields) {
    const Json* value = member(body, name);
    if (value != nullptr && !is_off(*value)) throw bad_request(fmt::format("{} is not supported", name), name);
  }
  const Json* truncation = member(body, "truncation");
  if (truncation != nullptr && *truncation != "disabled") {
    throw bad_request("truncation must be \"disabled\": this server never drops messages", "truncation");
  }
}

std::string content_text(const Json* content, const std::string& where) {
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) throw bad_request(where + ".content must be a string or a list of parts", "input");
  std::string text;
  for (const Json& part : *content) {
    const Json* type = member(part, "type");
    const Json* value = member(part, "text");
    const bool readable = type != nullptr && (*type == "input_text" || *type == "output_text" || *type == "text" ||
                                              *type == "reasoning_text");
    if (!readable || value == nullptr || !value->is_string()) {
      throw bad_request(fmt::format("{}: parts must be input_text or output_text; this model reads text only", where),
                        "input");
    }
    text += value->get_ref<const std::string&>();
  }
  return text;
}

/// The conversation as chat messages. Reasoning, text and calls that follow each other are one assistant message.
class Conversation {
 public:
  void add(const Json& item, const std::string& where) {
    if (!item.is_object()) throw bad_request(where + " must be an object", "input");
    const Json* type = member(item, "type");
    const std::string kind = type == nullptr ? "message" : type->is_string() ? type->get<std::string>() : "";
    if (kind == "message") {
      add_message(item, where);
    } else if (kind == "reasoning") {
      const std::string text = content_text(member(item, "content"), where);
      if (!text.empty()) assistant()["reasoning_content"] = text;
    } else if (kind == "function_call") {
      add_call(item, where);
    } else if (kind == "function_call_output") {
      Json result = {{"role", "tool"}, {"content", content_text(member(item, "output"), where)}};
      if (const Json* id = member(item, "call_id")) result["tool_call_id"] = *id;
      push(std::move(result));
    } else {
      throw bad_request(fmt::format("{}: items of type '{}' are not supported", where, kind), "input");
    }
  }
  [[nodiscard]] Json take() { return std::move(messages_); }
  void push(Json message) {
    messages_.push_back(std::move(message));
    open_ = false;
  }

 private:
  Json& assistant() {
    if (!open_) messages_.push_back({{"role", "assistant"}, {"content", ""}});
    open_ = true;
    return messages_.back();
  }
  void add_message(const Json& item, const std::string& where) {
    const Json* role = member(item, "role");
    if (role == nullptr || !role->is_string()) throw bad_request(where + " needs a role", "input");
    const std::string text = content_text(member(item, "content"), where);
    if (*role == "assistant") {
      if (open_ && !messages_.back()["content"].get_ref<const std::string&>().empty()) open_ = false;
      assistant()["content"] = text;
      return;
    }
    push({{"role", *role}, {"content", text}});
  }
  void add_call(const Json& item, const std::string& where) {
    const Json* name = member(item, "name");
    if (name == nullptr || !name->is_string()) throw bad_request(where + " needs a name", "input");
    Json call = {{"type", "function"},
                 {"function", {{"name", *name}, {"arguments", string_field(item, "arguments").value_or("")}}}};
    if (const Json* id = member(item, "call_id")) call["id"] = *id;
    assistant()["tool_calls"].push_back(std::move(call));
  }

  Json messages_ = Json::array();
  bool open_ = false;
};

Json chat_tools(const Json& tools) {
  if (!tools.is_array()) throw bad_request("tools must be a list", "tools");
  Json offered = Json::array();
  for (const Json& tool : tools) {
    const Json* type = member(tool, "type");
    if (type == nullptr || !type->is_string()) throw bad_request("every tool needs a type", "tools");
    if (*type != "function") {
      throw bad_request(fmt::format("tools of type '{}' are not supported; tools must be of type 'function'",
                                    type->get<std::string>()),
                        "tools");
    }
    Json function;
    copy_members(tool, std::array{"name", "description", "parameters", "strict"}, function);
    offered.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return offered;
}

void set_format(const Json& text, Json& chat) {
  const Json* format = member(text, "format");
  if (format == nullptr) return;
  const Json* type = member(*format, "type");
  if (type != nullptr && *type == "json_schema") {
    Json schema = *format;
    schema.erase("type");
    chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  } else {
    chat["response_format"] = *format;
  }
}

}  // namespace

Json input_items(const Json& body) {
  const Json* input = member(body, "input");
  if (input == nullptr) throw bad_request("input must be a string or a list of items", "input");
  if (input->is_string()) {
    return Json::array({{{"type", "message"},
                         {"role", "user"},
                         {"content", Json::array({{{"type", "input_text"}, {"text", *input}}})}}});
  }
  if (!input->is_array() || input->empty()) throw bad_request("input must be a string or a list of items", "input");
  return *input;
}

Json chat_from_responses(const Json& body, const Json& items) {
  refuse_unsupported(body);
  Json chat = Json::object();
  constexpr std::array same = {"model",
                               "temperature",
                               "top_p",
                               "top_k",
                               "min_p",
                               "seed",
                               "stream",
                               "draft",
                               "ignore_eos",
                               "return_token_ids",
                               "priority",
                               "parallel_tool_calls",
                               "chat_template_kwargs",
                               "thinking_budget",
                               "stop",
                               "tool_choice"};
  copy_members(body, same, chat);
  copy_members(body, output_format_fields, chat);
  copy_restricting_fields(body, chat);
  if (const auto limit = integer_field(body, "max_output_tokens", 1)) chat["max_tokens"] = *limit;
  Conversation conversation;
  if (const auto instructions = string_field(body, "instructions")) {
    conversation.push({{"role", "system"}, {"content", *instructions}});
  }
  for (size_t i = 0; i < items.size(); ++i) conversation.add(items[i], fmt::format("input[{}]", i));
  chat["messages"] = conversation.take();
  if (const Json* tools = member(body, "tools"); tools != nullptr && !tools->empty())
    chat["tools"] = chat_tools(*tools);
  if (const Json* reasoning = member(body, "reasoning")) {
    if (const auto effort = string_field(*reasoning, "effort")) chat["reasoning_effort"] = *effort;
  }
  if (const Json* text = member(body, "text")) set_format(*text, chat);
  return chat;
}

}  // namespace tensorfold::server
