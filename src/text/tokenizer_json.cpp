#include "text/tokenizer_json.h"

#include <rapidjson/error/en.h>

#include "base/error.h"
#include "base/utf8.h"

namespace tensorfold::text {
namespace {

constexpr std::int64_t largest_token_id = (1 << 24) - 1;

[[noreturn]] void wrong_type(std::string_view where, const char* name, const char* expected) {
  fail(ErrorKind::corrupt_file, "tokenizer.json: {}: '{}' must be {}", where, name, expected);
}

const JsonValue& required(const JsonValue& object, const char* name, std::string_view where) {
  const JsonValue* value = find_member(object, name);
  if (value == nullptr) fail(ErrorKind::corrupt_file, "tokenizer.json: {}: '{}' is missing", where, name);
  return *value;
}

}  // namespace

JsonDocument parse_json(std::string text, const std::string& file) {
  JsonDocument result;
  if (!is_valid_utf8(text)) fail(ErrorKind::corrupt_file, "{}: not valid UTF-8", file);
  result.text = std::move(text);
  result.document.ParseInsitu<rapidjson::kParseIterativeFlag | rapidjson::kParseInsituFlag>(result.text.data());
  if (result.document.HasParseError()) {
    fail(ErrorKind::corrupt_file, "{}: not valid JSON at byte {}: {}", file, result.document.GetErrorOffset(),
         rapidjson::GetParseError_En(result.document.GetParseError()));
  }
  if (!result.document.IsObject()) fail(ErrorKind::corrupt_file, "{}: not a JSON object", file);
  return result;
}

const JsonValue* find_member(const JsonValue& object, const char* name) {
  if (!object.IsObject()) return nullptr;
  const auto found = object.FindMember(name);
  return found == object.MemberEnd() || found->value.IsNull() ? nullptr : &found->value;
}

std::string_view string_member(const JsonValue& object, const char* name, std::string_view where) {
  const JsonValue& value = required(object, name, where);
  if (!value.IsString()) wrong_type(where, name, "a string");
  return json_string(value);
}

std::string_view string_member_or(const JsonValue& object, const char* name, std::string_view fallback,
                                  std::string_view where) {
  return find_member(object, name) == nullptr ? fallback : string_member(object, name, where);
}

bool bool_member_or(const JsonValue& object, const char* name, bool fallback, std::string_view where) {
  const JsonValue* value = find_member(object, name);
  if (value == nullptr) return fallback;
  if (!value->IsBool()) wrong_type(where, name, "true or false");
  return value->GetBool();
}

std::size_t count_member_or(const JsonValue& object, const char* name, std::size_t fallback, std::string_view where) {
  const JsonValue* value = find_member(object, name);
  if (value == nullptr) return fallback;
  if (!value->IsUint()) wrong_type(where, name, "a count");
  return value->GetUint();
}

const JsonValue& array_member(const JsonValue& object, const char* name, std::string_view where) {
  const JsonValue& value = required(object, name, where);
  if (!value.IsArray()) wrong_type(where, name, "a list");
  return value;
}

const JsonValue& object_member(const JsonValue& object, const char* name, std::string_view where) {
  const JsonValue& value = required(object, name, where);
  if (!value.IsObject()) wrong_type(where, name, "an object");
  return value;
}

char32_t character_member(const JsonValue& object, const char* name, std::string_view where) {
  const std::string_view text = string_member(object, name, where);
  std::size_t position = 0;
  const char32_t result = text.empty() ? 0 : next_code_point(text, position);
  if (text.empty() || position != text.size()) wrong_type(where, name, "one character");
  return result;
}

std::int32_t token_id(const JsonValue& value, std::string_view what) {
  if (!value.IsInt64() || value.GetInt64() < 0 || value.GetInt64() > largest_token_id) {
    fail(ErrorKind::corrupt_file, "tokenizer.json: {}: the id must be an integer from 0 to {}", what, largest_token_id);
  }
  return static_cast<std::int32_t>(value.GetInt64());
}

}  // namespace tensorfold::text
