// Schemas that hold at the same time, as one schema.
#pragma once

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace tensorfold::text::grammar {

using Json = nlohmann::ordered_json;

/// Finds what a $ref names. Throws Error(invalid_request).
using FindReference = std::function<const Json&(const std::string& reference, const std::string& path)>;

/// The schema without $ref, allOf and oneOf at its top: references followed, allOf folded in, oneOf read as anyOf.
/// Members of `properties`, `items` and so on stay as they are. Error invalid_request, naming the path, where two
/// keywords cannot be made one. Each schema that is looked at takes one from `budget`; none left is an error.
Json flattened(const Json& schema, const std::string& path, const FindReference& find, size_t& budget);

/// Whether the schema says more than annotations do.
bool constrains(const Json& schema);

}  // namespace tensorfold::text::grammar
