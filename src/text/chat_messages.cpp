#include "text/chat_messages.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "text/jinja/json_value.h"

namespace tensorfold::text {

namespace {

using jinja::Dict;
using jinja::MarkedText;
using jinja::TextBuilder;
using jinja::Value;

using Entries = std::vector<std::pair<Value, Value>>;

const Value* find(const Value& mapping, std::string_view key) { return mapping.dict().find(key); }

/// The mapping with one entry replaced or added.
Value with_entry(const Value& mapping, std::string_view key, Value value) {
  Entries entries = mapping.dict().entries();
  entries.emplace_back(Value(key), std::move(value));
  return Value::dict(std::move(entries));
}

std::string role_of(const Value& message, std::size_t index) {
  static constexpr std::array<std::string_view, 5> roles = {"system", "developer", "user", "assistant", "tool"};
  if (!message.is_dict()) fail(ErrorKind::invalid_request, "messages[{}] must be an object", index);
  const Value* role = find(message, "role");
  const std::string name = role != nullptr && role->is_string() ? role->text().str() : std::string();
  if (std::find(roles.begin(), roles.end(), name) == roles.end()) {
    fail(ErrorKind::invalid_request, "messages[{}].role must be system, developer, user, assistant or tool", index);
  }
  return name;
}

/// A content list of text parts only, joined; nothing if there are parts of another kind.
std::optional<MarkedText> join_text_parts(const Value& content, std::size_t index) {
  TextBuilder joined;
  for (const Value& part : content.sequence().items) {
    const Value* type = part.is_dict() ? find(part, "type") : nullptr;
    if (type == nullptr || !type->is_string()) {
      fail(ErrorKind::invalid_request, "messages[{}].content has a part without a type", index);
    }
    if (type->text().view() != "text") return std::nullopt;
    const Value* text = find(part, "text");
    if (text == nullptr || !text->is_string()) {
      fail(ErrorKind::invalid_request, "messages[{}].content has a text part without text", index);
    }
    joined.append(text->text());
  }
  return joined.finish();
}

Value normalise_content(const Value& message, std::size_t index) {
  const Value* content = find(message, "content");
  if (content == nullptr || content->is_none()) return MarkedText();
  if (content->is_string()) return *content;
  if (!content->is_list()) {
    fail(ErrorKind::invalid_request, "messages[{}].content must be a string, null or a list of parts", index);
  }
  const auto joined = join_text_parts(*content, index);
  return joined ? Value(*joined) : *content;
}

/// Text that is a JSON object as a mapping.
std::optional<Value> parse_object(const MarkedText& text) {
  try {
    Value parsed = jinja::parse_json(text.view());
    if (parsed.is_dict()) return parsed;
  } catch (const Error&) {
    return std::nullopt;  // malformed history is the model's, not an error of this request
  }
  return std::nullopt;
}

Value normalise_arguments(const Value* arguments, const TemplateTraits& traits) {
  const bool empty =
      arguments == nullptr || arguments->is_none() || (arguments->is_string() && arguments->text().empty());
  if (traits.arguments_as_text) {
    if (empty) return "{}";
    return arguments->is_string() ? *arguments : Value(jinja::dump_json(*arguments));
  }
  if (empty) return Value::dict({});
  if (arguments->is_dict()) return *arguments;
  const auto parsed = arguments->is_string() ? parse_object(arguments->text()) : std::nullopt;
  return parsed ? *parsed : Value::dict({{Value("_invalid_arguments"), *arguments}});
}

Value normalise_call(const Value& call, const TemplateTraits& traits, std::size_t index) {
  if (!call.is_dict()) fail(ErrorKind::invalid_request, "messages[{}].tool_calls must be a list of objects", index);
  const Value* function = find(call, "function");
  if (function == nullptr) return with_entry(call, "arguments", normalise_arguments(find(call, "arguments"), traits));
  if (!function->is_dict()) {
    fail(ErrorKind::invalid_request, "messages[{}].tool_calls has a function that is not an object", index);
  }
  return with_entry(call, "function",
                    with_entry(*function, "arguments", normalise_arguments(find(*function, "arguments"), traits)));
}

Value normalise_message(const Value& message, const std::string& role, const TemplateTraits& traits,
                        std::size_t index) {
  Value result = with_entry(with_entry(message, "role", Value(role)), "content", normalise_content(message, index));
  const Value* calls = find(message, "tool_calls");
  if (calls == nullptr || calls->is_none()) return result;
  if (!calls->is_list()) fail(ErrorKind::invalid_request, "messages[{}].tool_calls must be a list", index);
  std::vector<Value> normalised;
  for (const Value& call : calls->sequence().items) normalised.push_back(normalise_call(call, traits, index));
  return with_entry(result, "tool_calls", Value::list(std::move(normalised)));
}

bool is_instruction(const std::string& role) { return role == "system" || role == "developer"; }

/// The contents of leading system messages as one.
Value merge_instructions(const std::vector<Value>& leading) {
  if (leading.size() == 1) return leading.front();
  TextBuilder merged;
  for (const Value& message : leading) {
    const Value& content = *find(message, "content");
    if (!content.is_string()) fail(ErrorKind::invalid_request, "a system message must be text");
    if (merged.size() > 0) merged.append("\n\n");
    merged.append(content.text());
  }
  return with_entry(leading.front(), "content", Value(merged.finish()));
}

}  // namespace

Value normalise_messages(const Value& messages, const TemplateTraits& traits) {
  if (!messages.is_list() || messages.sequence().items.empty()) {
    fail(ErrorKind::invalid_request, "messages must be a non-empty list");
  }
  const auto& given = messages.sequence().items;
  std::vector<Value> leading;
  std::vector<Value> result;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string role = role_of(given[i], i);
    const bool leads = is_instruction(role) && leading.size() == i;
    const std::string rendered = !is_instruction(role) ? role : leads || traits.renders_late_system ? "system" : "user";
    (leads ? leading : result).push_back(normalise_message(given[i], rendered, traits, i));
  }
  if (!leading.empty()) result.insert(result.begin(), merge_instructions(leading));
  return Value::list(std::move(result));
}

}  // namespace tensorfold::text
