// JSON Schema's named string formats as regular expressions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tensorfold::text::grammar {

/// A pattern whose texts are all valid in the format, or nothing for a format that is not known. Some formats allow
/// more than their pattern: an address with a quoted local part, a URI without an authority, a leap second.
std::optional<std::string> format_pattern(std::string_view format);

}  // namespace tensorfold::text::grammar
