#include "text/jinja/value.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "text/jinja/operators.h"

namespace tensorfold::text::jinja {

namespace {

constexpr std::size_t linear_search_up_to = 8;

std::size_t checked_depth(std::size_t depth) {
  if (depth > max_container_depth) throw TemplateFailure("values nest too deeply");
  return depth;
}

std::size_t depth_over(const std::vector<Value>& items) {
  std::size_t depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return checked_depth(depth + 1);
}

}  // namespace

Value Value::undefined(std::string message) {
  Value value;
  value.storage_ = Undefined{std::make_shared<const std::string>(std::move(message))};
  return value;
}

Value Value::sequence(SequenceKind kind, std::vector<Value> items) {
  return Value(std::make_shared<const Sequence>(kind, std::move(items)));
}

Value Value::dict(std::vector<std::pair<Value, Value>> entries) {
  return Value(std::make_shared<const Dict>(std::move(entries)));
}

bool Value::is_sequence(SequenceKind kind) const { return is_sequence() && sequence().kind == kind; }

std::size_t Value::depth() const {
  if (is_sequence()) return sequence().depth;
  if (is_dict()) return dict().depth();
  if (is_object()) return object().depth();
  return 0;
}

Sequence::Sequence(SequenceKind sequence_kind, std::vector<Value> values)
    : kind(sequence_kind),
      items(std::move(values)),
      depth(depth_over(items)),
      charge(sizeof(Sequence) + items.capacity() * sizeof(Value)) {
  if (RenderMeter* meter = RenderMeter::current()) meter->step(items.size() / 8);
}

Dict::Dict(std::vector<std::pair<Value, Value>> entries)
    : charge_(std::make_unique<MemoryCharge>(sizeof(Dict) + entries.size() * (2 * sizeof(Value) + 48))) {
  entries_.reserve(entries.size());
  for (auto& [key, value] : entries) set(std::move(key), std::move(value));
}

std::size_t Dict::position(std::size_t hash, const Value& key) const {
  if (positions_.empty()) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (equal(entries_[i].first, key)) return i;
    }
    return entries_.size();
  }
  const auto [begin, end] = positions_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (equal(entries_[at->second].first, key)) return at->second;
  }
  return entries_.size();
}

const Value* Dict::find(const Value& key) const {
  const std::size_t at = position(hash_value(key), key);
  return at < entries_.size() ? &entries_[at].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (positions_.empty()) {
    for (const auto& [candidate, value] : entries_) {
      if (candidate.is_string() && candidate.text().view() == key) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = positions_.equal_range(std::hash<std::string_view>{}(key));
  for (auto at = begin; at != end; ++at) {
    const Value& candidate = entries_[at->second].first;
    if (candidate.is_string() && candidate.text().view() == key) return &entries_[at->second].second;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  depth_ = std::max(depth_, checked_depth(std::max(key.depth(), value.depth()) + 1));
  const std::size_t hash = hash_value(key);
  const std::size_t at = position(hash, key);
  if (at < entries_.size()) {
    entries_[at].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (!positions_.empty()) {
    positions_.emplace(hash, at);
  } else if (entries_.size() > linear_search_up_to) {
    for (std::size_t i = 0; i < entries_.size(); ++i) positions_.emplace(hash_value(entries_[i].first), i);
  }
}

std::vector<const Value*> Arguments::bind(std::string_view function,
                                          std::initializer_list<std::string_view> names) const {
  if (positional.size() > names.size()) {
    throw TemplateFailure(
        fmt::format("{} takes at most {} arguments ({} given)", function, names.size(), positional.size()));
  }
  std::vector<const Value*> bound(names.size(), nullptr);
  for (std::size_t i = 0; i < positional.size(); ++i) bound[i] = &positional[i];
  for (const auto& [name, value] : named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) throw TemplateFailure(fmt::format("{} has no argument '{}'", function, name));
    const auto index = static_cast<std::size_t>(found - names.begin());
    if (bound[index] != nullptr) throw TemplateFailure(fmt::format("{} got '{}' twice", function, name));
    bound[index] = &value;
  }
  return bound;
}

Object::Object(std::size_t contents_depth) : depth_(checked_depth(contents_depth)) {}

Value Object::attribute(std::string_view name) const {
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", type_name(), name));
}

Value Object::call(Evaluator& /*evaluator*/, const Arguments& /*arguments*/) {
  throw TemplateFailure(fmt::format("'{}' object is not callable", type_name()));
}

std::string type_name(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.is_undefined()) return "Undefined";
  if (value.is_bool()) return "bool";
  if (value.is_int()) return "int";
  if (value.is_float()) return "float";
  if (value.is_string()) return value.text().is_markup() ? "Markup" : "str";
  if (value.is_dict()) return "dict";
  if (value.is_object()) return value.object().type_name();
  switch (value.sequence().kind) {
    case SequenceKind::list:
      return "list";
    case SequenceKind::tuple:
      return "tuple";
    case SequenceKind::generator:
      return "generator";
    case SequenceKind::range:
      return "range";
    case SequenceKind::dict_keys:
      return "dict_keys";
    case SequenceKind::dict_values:
      return "dict_values";
    case SequenceKind::dict_items:
      return "dict_items";
  }
  return "object";
}

std::string object_description(const Value& value) {
  return value.is_none() ? "'None'" : fmt::format("'{} object'", type_name(value));
}

void require_defined(const Value& value) {
  if (value.is_undefined()) throw TemplateFailure(value.undefined_message());
}

}  // namespace tensorfold::text::jinja
