// Request bodies as JSON: parsed with bounds on depth and size of objects, fields read with their types checked.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace tensorfold::server {

/// Keeps the order of keys, which templates show to the model. Its look-up is linear, hence the bound in parse_body().
using Json = nlohmann::ordered_json;

/// Parses a body. Throws ApiError (400) when it is not JSON in UTF-8 (with the byte offset), nests deeper than 128 or
/// has an object of more than 4,096 members.
Json parse_body(std::string_view body);

/// Compact text, non-ASCII characters as they are, invalid UTF-8 replaced.
std::string dump(const Json& value);

/// The member of this name, or null when it is missing or JSON null.
const Json* member(const Json& object, std::string_view name);
/// Copies the members of these names that are there.
void copy_members(const Json& from, std::span<const char* const> names, Json& to);

// Typed fields; nothing when absent or null. Numbers may come as strings, integers as integral floats, as clients do.
// Throw ApiError (400) that names the field.
std::optional<int64_t> integer_field(const Json& object, std::string_view name,
                                     int64_t lowest = std::numeric_limits<int64_t>::min(),
                                     int64_t highest = std::numeric_limits<int64_t>::max());
std::optional<double> number_field(const Json& object, std::string_view name,
                                   double lowest = -std::numeric_limits<double>::infinity(),
                                   double highest = std::numeric_limits<double>::infinity());
std::optional<bool> boolean_field(const Json& object, std::string_view name);
std::optional<std::string> string_field(const Json& object, std::string_view name);
/// A string or a list of strings.
std::vector<std::string> strings_field(const Json& object, std::string_view name);

}  // namespace tensorfold::server
