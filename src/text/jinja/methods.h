// The methods of str, list, tuple and dict that templates may call.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace tensorfold::text::jinja {

/// Whether `value.name` is a method that call_method knows.
bool has_method(const Value& value, std::string_view name);
/// Methods that would change a list or a dict; the sandbox refuses them.
bool is_unsafe_method(const Value& value, std::string_view name);
/// A method as a value of its own.
Value bound_method(const Value& value, std::string_view name);
/// Calls a method that has_method knows.
Value call_method(const Value& value, std::string_view name, const Arguments& arguments);

/// str methods; `name` must be one of string_method_names().
Value call_string_method(const MarkedText& text, std::string_view name, const Arguments& arguments);
bool is_string_method(std::string_view name);

/// Which ends a strip works on.
enum class StripSide { both, left, right };
/// Text without the given code points (white space if nullptr) at its ends.
MarkedText strip(const MarkedText& text, const MarkedText* characters, StripSide side);
/// Pieces of text around a separator; white space if nullptr. A negative limit means all.
std::vector<Value> split(const MarkedText& text, const MarkedText* separator, Int limit);
/// Python's str.splitlines without line ends.
std::vector<Value> split_lines(const MarkedText& text);
/// Text with up to `limit` occurrences replaced; all if negative.
MarkedText replace(const MarkedText& text, const MarkedText& old, const MarkedText& fresh, Int limit);
/// The text in a field of `width` code points: '<', '>' or '^'.
MarkedText pad(const MarkedText& text, Int width, std::string_view fill, char alignment);
MarkedText capitalize(const MarkedText& text);

}  // namespace tensorfold::text::jinja
