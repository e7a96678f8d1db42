// Checked reading of tokenizer.json: every wrong type or missing field becomes one Error that names the place.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <rapidjson/document.h>

namespace tensorfold::text {

using JsonValue = rapidjson::Value;

/// A JSON file in memory. Strings of the document point into `text`, so both live together.
struct JsonDocument {
  std::string text;
  rapidjson::Document document;
};

/// Parses `text` (valid UTF-8, any depth without recursion). Error corrupt_file names `file` and the byte offset.
JsonDocument parse_json(std::string text, const std::string& file);

/// A string's bytes; valid as long as the document.
inline std::string_view json_string(const JsonValue& value) { return {value.GetString(), value.GetStringLength()}; }

/// The member `name`, or null if it is absent or JSON null. `object` may be any value.
const JsonValue* find_member(const JsonValue& object, const char* name);

/// Members that must be there (or have a default when absent or null). `where` names the object in messages, for
/// example "normalizer Replace". Errors are corrupt_file.
std::string_view string_member(const JsonValue& object, const char* name, std::string_view where);
std::string_view string_member_or(const JsonValue& object, const char* name, std::string_view fallback,
                                  std::string_view where);
bool bool_member_or(const JsonValue& object, const char* name, bool fallback, std::string_view where);
std::size_t count_member_or(const JsonValue& object, const char* name, std::size_t fallback, std::string_view where);
const JsonValue& array_member(const JsonValue& object, const char* name, std::string_view where);
const JsonValue& object_member(const JsonValue& object, const char* name, std::string_view where);

/// The single character of a string member.
char32_t character_member(const JsonValue& object, const char* name, std::string_view where);

/// A token id: an integer from 0 to 16,777,215. `what` names its owner.
std::int32_t token_id(const JsonValue& value, std::string_view what);

}  // namespace tensorfold::text
