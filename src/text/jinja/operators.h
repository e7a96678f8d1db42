// Python's operators on template values: truth, equality, order, arithmetic, membership, iteration, look-up and
// slicing, and the spelling of values as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace tensorfold::text::jinja {

bool truthy(const Value& value);
/// Python's ==. Numbers compare by value whatever their type.
bool equal(const Value& left, const Value& right);
/// Python's <; throws for operands that Python does not order. `symbol` is for the message.
bool less(const Value& left, const Value& right, std::string_view symbol = "<");
/// Equal values have equal hashes; throws for unhashable values.
std::size_t hash_value(const Value& value);
/// Python's `item in container`.
bool contains(const Value& container, const Value& item);

enum class BinaryOperator { add, subtract, multiply, divide, floor_divide, modulo, power };
Value apply(BinaryOperator operation, const Value& left, const Value& right);
Value negate(const Value& value);

/// The items a loop sees: code points, keys or elements; nothing for undefined values. Throws for anything else.
std::vector<Value> iterate(const Value& value);
/// Python's len().
std::size_t length(const Value& value);

/// container.name as Jinja's sandbox reads it: method, attribute, then item; undefined when there is none.
Value get_attribute(const Value& value, std::string_view name);
/// container[key] as Jinja reads it: item, then attribute; undefined when there is none.
Value get_item(const Value& value, const Value& key);
/// Python's value[start:stop:step] for strings and sequences.
Value get_slice(const Value& value, const Value& start, const Value& stop, const Value& step);

/// Python's str() and repr().
MarkedText to_text(const Value& value);
MarkedText representation(const Value& value);
/// Python's repr() of a number.
std::string format_float(double value);
std::string format_integer(Int value);
/// A decimal literal, or nothing when it is malformed or beyond 128 bits.
std::optional<Int> parse_integer(std::string_view digits, int base = 10);

/// Text with & < > " ' as HTML entities.
MarkedText escape_html(const MarkedText& text);
/// The value as text, escaped unless it is markup.
MarkedText escape_value(const Value& value);

}  // namespace tensorfold::text::jinja
