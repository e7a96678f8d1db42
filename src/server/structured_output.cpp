#include "server/structured_output.h"

#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "server/api_error.h"
#include "text/grammar/grammar.h"

namespace tensorfold::server {
namespace {

using Kind = OutputFormat::Kind;

constexpr size_t most_grammars = 16;
constexpr size_t longest_text = size_t{256} << 10;

[[noreturn]] void refuse(const std::string& field, const std::string& what) {
  throw bad_request(fmt::format("{} {}", field, what), field.substr(0, field.find('.')));
}

/// A schema, a schema as text, or true for any JSON.
OutputFormat schema_format(Json value, const std::string& field) {
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    value = Json::parse(text, nullptr, false);
    if (value.is_discarded()) refuse(field, "is not JSON");
  }
  if (value == true) return {Kind::json_value, Json(), field};
  if (!value.is_object()) refuse(field, "must be a JSON schema");
  return {Kind::json_schema, std::move(value), field};
}

OutputFormat text_format(Kind kind, const Json& value, const std::string& field) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) refuse(field, "must be a non-empty string");
  if (value.get_ref<const std::string&>().size() > longest_text) refuse(field, "is longer than 256 KiB");
  return {kind, value, field};
}

OutputFormat choice_format(const Json& value, const std::string& field) {
  if (!value.is_array() || value.empty()) refuse(field, "must be a non-empty list of strings");
  for (const Json& one : value) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty()) {
      refuse(field, "must be a list of non-empty strings");
    }
  }
  return {Kind::choice, value, field};
}

std::optional<OutputFormat> response_format(const Json& format) {
  const std::string field = "response_format";
  const Json* type = member(format, "type");
  if (type == nullptr || !type->is_string()) refuse(field, "needs a type");
  const auto& name = type->get_ref<const std::string&>();
  if (name == "text") return std::nullopt;
  if (name == "json_object") {
    // llama.cpp's spelling of a schema.
    if (const Json* schema = member(format, "schema")) return schema_format(*schema, field + ".schema");
    return OutputFormat{Kind::json_object, Json(), field};
  }
  if (name == "json_schema") {
    const Json* outer = member(format, "json_schema");
    const Json* schema = member(outer != nullptr ? *outer : format, "schema");
    if (schema == nullptr) refuse(field + ".json_schema", "needs a schema");
    return schema_format(*schema, field + (outer != nullptr ? ".json_schema.schema" : ".schema"));
  }
  refuse(field + ".type", fmt::format("'{}' is not text, json_object or json_schema", name));
}

std::optional<OutputFormat> structured_outputs(const Json& outputs) {
  const std::string field = "structured_outputs";
  if (!outputs.is_object()) refuse(field, "must be an object");
  std::optional<OutputFormat> format;
  const bool blanks = !boolean_field(outputs, "disable_any_whitespace").value_or(false);
  for (const auto& [key, value] : outputs.items()) {
    if (value.is_null() || key == "disable_any_whitespace") continue;
    const std::string place = field + "." + key;
    std::optional<OutputFormat> one;
    if (key == "json") {
      one = schema_format(value, place);
    } else if (key == "regex") {
      one = text_format(Kind::regex, value, place);
    } else if (key == "choice") {
      one = choice_format(value, place);
    } else if (key == "grammar") {
      one = text_format(Kind::grammar, value, place);
    } else if (key == "json_object") {
      if (!value.is_boolean()) refuse(place, "must be true or false");
      if (value == true) one = OutputFormat{Kind::json_object, Json(), place};
    } else {
      refuse(place, "is not supported: json, regex, choice, grammar, json_object and disable_any_whitespace are");
    }
    if (one && format) refuse(field, "may ask for one thing only");
    if (one) format = std::move(one);
  }
  if (format) format->blanks = blanks;
  return format;
}

text::grammar::Automaton compile(const OutputFormat& format) {
  switch (format.kind) {
    case Kind::json_object:
      return text::grammar::compile_json_object(format.blanks);
    case Kind::json_value:
      return text::grammar::compile_json_value(format.blanks);
    case Kind::json_schema:
      return text::grammar::compile_json_schema(format.value, format.blanks);
    case Kind::regex:
      return text::grammar::compile_regex(format.value.get_ref<const std::string&>());
    case Kind::choice:
      return text::grammar::compile_choice(format.value.get<std::vector<std::string>>());
    case Kind::grammar:
      return text::grammar::compile_ebnf(format.value.get_ref<const std::string&>());
  }
  throw Error(ErrorKind::internal, "internal error: an unknown kind of grammar");
}

}  // namespace

std::optional<OutputFormat> read_output_format(const Json& body) {
  if (const Json* format = member(body, "response_format")) {
    if (auto asked = response_format(*format)) return asked;
  }
  if (const Json* value = member(body, "guided_json")) return schema_format(*value, "guided_json");
  if (const Json* value = member(body, "guided_regex")) return text_format(Kind::regex, *value, "guided_regex");
  if (const Json* value = member(body, "guided_choice")) return choice_format(*value, "guided_choice");
  if (const Json* value = member(body, "guided_grammar")) return text_format(Kind::grammar, *value, "guided_grammar");
  if (const Json* value = member(body, "structured_outputs")) {
    if (auto asked = structured_outputs(*value)) return asked;
  }
  if (const Json* value = member(body, "grammar")) {
    if (!value->is_string()) refuse("grammar", "must be a string");
    if (!value->get_ref<const std::string&>().empty()) return text_format(Kind::grammar, *value, "grammar");
  }
  if (const Json* value = member(body, "json_schema")) return schema_format(*value, "json_schema");
  return std::nullopt;
}

std::shared_ptr<text::grammar::Matcher> GrammarStore::get(
    const OutputFormat& format, const std::shared_ptr<const text::grammar::Vocabulary>& vocabulary) {
  const std::string key = fmt::format("{} {} {}", static_cast<int>(format.kind), format.blanks, dump(format.value));
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = places_.find(key); known != places_.end()) {
      entries_.splice(entries_.begin(), entries_, known->second);
      return known->second->second;
    }
  }
  std::shared_ptr<text::grammar::Matcher> matcher;
  try {
    matcher = std::make_shared<text::grammar::Matcher>(compile(format), vocabulary);
  } catch (const Error& failure) {
    if (failure.kind() != ErrorKind::invalid_request) throw;
    throw bad_request(fmt::format("{}: {}", format.field, failure.what()),
                      format.field.substr(0, format.field.find('.')));
  }
  const std::lock_guard lock(mutex_);
  if (const auto known = places_.find(key); known != places_.end()) return known->second->second;
  entries_.emplace_front(key, matcher);
  places_[key] = entries_.begin();
  if (entries_.size() > most_grammars) {
    places_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return matcher;
}

}  // namespace tensorfold::server
