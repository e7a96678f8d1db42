// Attributes, items and slices (operators.h).
#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace tensorfold::text::jinja {

namespace {

Value text_at(const MarkedText& text, std::size_t index) {
  if (text.length() == text.size()) return text.slice(index, index + 1);
  std::size_t at = 0;
  for (std::size_t i = 0; i < index; ++i) at = code_point_end(text.view(), at);
  return text.slice(at, code_point_end(text.view(), at));
}

bool indexable(const Value& value) {
  return value.is_list() || value.is_sequence(SequenceKind::tuple) || value.is_sequence(SequenceKind::range);
}

/// value[index] of a string or sequence, or nothing.
std::optional<Value> item_at(const Value& value, Int index) {
  if (!value.is_string() && !indexable(value)) return std::nullopt;
  const auto size = static_cast<Int>(length(value));
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  const auto at = static_cast<std::size_t>(index);
  return value.is_string() ? text_at(value.text(), at) : value.sequence().items[at];
}

Value missing_attribute(const Value& value, std::string_view name) {
  return Value::undefined(fmt::format("{} has no attribute '{}'", object_description(value), name));
}

/// The positions that value[start:stop:step] takes, as slice.indices() gives them.
std::vector<std::size_t> slice_positions(Int size, const Value& start, const Value& stop, const Value& step) {
  const auto bound = [](const Value& value) -> std::optional<Int> {
    if (value.is_none()) return std::nullopt;
    require_defined(value);
    if (!value.is_integral()) {
      throw TemplateFailure("slice indices must be integers or None or have an __index__ method");
    }
    return value.integer();
  };
  const Int stride = bound(step).value_or(1);
  if (stride == 0) throw TemplateFailure("slice step cannot be zero");
  const Int lowest = stride < 0 ? -1 : 0;
  const Int highest = stride < 0 ? size - 1 : size;
  const auto clamp = [&](std::optional<Int> value, Int missing) {
    if (!value) return missing;
    const Int position = *value < 0 ? (*value < -size ? lowest : *value + size) : *value;
    return std::clamp(position, lowest, highest);
  };
  const Int first = clamp(bound(start), stride < 0 ? highest : lowest);
  const Int last = clamp(bound(stop), stride < 0 ? lowest : highest);
  std::vector<std::size_t> positions;
  for (Int at = first; stride < 0 ? at > last : at < last; at += stride) {
    positions.push_back(static_cast<std::size_t>(at));
    if (stride > size || stride < -size) break;
  }
  return positions;
}

Value slice_text(const MarkedText& text, const Value& start, const Value& stop, const Value& step) {
  const auto positions = slice_positions(static_cast<Int>(text.length()), start, stop, step);
  if (positions.empty()) return MarkedText();
  const auto offsets = code_point_offsets(text.view());
  if (positions.back() - positions.front() + 1 == positions.size()) {
    return text.slice(offsets[positions.front()], offsets[positions.back() + 1]);
  }
  TextBuilder builder;
  for (const std::size_t at : positions) builder.append(text, offsets[at], offsets[at + 1]);
  return builder.finish(text.is_markup());
}

}  // namespace

Value get_attribute(const Value& value, std::string_view name) {
  require_defined(value);
  if (name.starts_with("_")) return missing_attribute(value, name);
  if (value.is_object()) return value.object().attribute(name);
  if (is_unsafe_method(value, name)) {
    return Value::undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(value)));
  }
  if (has_method(value, name)) return bound_method(value, name);
  if (value.is_dict()) {
    if (const Value* found = value.dict().find(name)) return *found;
  }
  if (value.is_sequence() && value.sequence().is_group && (name == "grouper" || name == "list")) {
    return value.sequence().items[name == "list" ? 1 : 0];
  }
  return missing_attribute(value, name);
}

Value get_item(const Value& value, const Value& key) {
  require_defined(value);
  if (value.is_dict()) {
    if (key.is_list() || key.is_dict()) return missing_attribute(value, representation(key).view());
    if (const Value* found = value.dict().find(key)) return *found;
  } else if (key.is_integral()) {
    if (auto item = item_at(value, key.integer())) return *std::move(item);
  }
  if (key.is_undefined()) return missing_attribute(value, "Undefined");
  if (key.is_string()) return get_attribute(value, key.text().view());
  return Value::undefined(fmt::format("{} has no element {}", object_description(value), to_text(key).view()));
}

Value get_slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  require_defined(value);
  if (value.is_string()) return slice_text(value.text(), start, stop, step);
  if (!indexable(value)) throw TemplateFailure(fmt::format("'{}' object is not subscriptable", type_name(value)));
  const auto& items = value.sequence().items;
  std::vector<Value> taken;
  for (const std::size_t at : slice_positions(static_cast<Int>(items.size()), start, stop, step)) {
    taken.push_back(items[at]);
  }
  return Value::sequence(value.sequence().kind, std::move(taken));
}

}  // namespace tensorfold::text::jinja
