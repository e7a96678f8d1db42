// Filters over numbers, lists and mappings (filters.h).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include <fmt/format.h>

#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace tensorfold::text::jinja {

namespace {

bool truth_or(const Value* value, bool standard) { return value == nullptr ? standard : truthy(*value); }

Int integer_or(const Value* value, Int standard) {
  if (value == nullptr || value->is_none()) return standard;
  require_defined(*value);
  if (!value->is_integral()) throw TemplateFailure(fmt::format("an integer is needed, not {}", type_name(*value)));
  return value->integer();
}

bool given(const Value* value) { return value != nullptr && !value->is_none(); }

/// Text as Python's float() reads it.
std::optional<double> read_float(const MarkedText& text) {
  std::string digits = strip(text, nullptr, StripSide::both).str();
  std::erase(digits, '_');
  if (digits.starts_with("+")) digits.erase(0, 1);
  double value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || result.ec != std::errc() || result.ptr != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<Int> read_integer(const MarkedText& text, int base) {
  std::string digits = strip(text, nullptr, StripSide::both).str();
  std::erase(digits, '_');
  const std::string prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (!prefix.empty() && (digits.starts_with(prefix) ||
                          digits.starts_with(prefix[0] + std::string(1, static_cast<char>(prefix[1] - 32))))) {
    digits.erase(0, 2);
  }
  return parse_integer(digits, base);
}

std::optional<Int> truncate_float(double value) {
  if (!std::isfinite(value) || std::fabs(value) > 1e38) return std::nullopt;
  return static_cast<Int>(value);
}

Value to_integer(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("int", {"default", "base"});
  const Value standard = bound[0] == nullptr ? Value(0) : *bound[0];
  require_defined(input);
  if (input.is_integral()) return input.integer();
  std::optional<Int> number;
  if (input.is_float()) number = truncate_float(input.number());
  if (input.is_string()) {
    const auto base = static_cast<int>(std::clamp<Int>(integer_or(bound[1], 10), 2, 36));
    number = read_integer(input.text(), base);
    const auto real = number ? std::nullopt : read_float(input.text());
    if (real) number = truncate_float(*real);
  }
  return number ? Value(*number) : standard;
}

Value to_float(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("float", {"default"});
  require_defined(input);
  if (input.is_number()) return input.number();
  const auto number = input.is_string() ? read_float(input.text()) : std::nullopt;
  if (number) return *number;
  return bound[0] == nullptr ? Value(0.0) : *bound[0];
}

Value round_number(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("round", {"precision", "method"});
  const auto precision = static_cast<int>(std::clamp<Int>(integer_or(bound[0], 0), -300, 300));
  const std::string method = bound[1] == nullptr ? "common" : to_text(*bound[1]).str();
  require_defined(input);
  if (!input.is_number()) throw TemplateFailure("round needs a number");
  if (method == "common") {
    if (input.is_integral() && precision >= 0) return input.integer();
    if (precision >= 0) return std::strtod(fmt::format("{:.{}f}", input.number(), precision).c_str(), nullptr);
    const double scale = std::pow(10.0, -precision);
    const double rounded = std::nearbyint(input.number() / scale) * scale;
    return input.is_integral() ? Value(static_cast<Int>(rounded)) : Value(rounded);
  }
  if (method != "ceil" && method != "floor") throw TemplateFailure("method must be common, ceil or floor");
  const double scale = std::pow(10.0, precision);
  const double scaled = input.number() * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value absolute(Evaluator& /*evaluator*/, const Value& input, const Arguments& /*arguments*/) {
  require_defined(input);
  if (input.is_float()) return std::fabs(input.number());
  return input.is_number() && input.integer() >= 0 ? Value(input.integer()) : negate(input);
}

Value first_item(Evaluator& /*evaluator*/, const Value& input, const Arguments& /*arguments*/) {
  std::vector<Value> items = iterate(input);
  if (items.empty()) return Value::undefined("No first item, sequence was empty.");
  return items.front();
}

Value last_item(Evaluator& /*evaluator*/, const Value& input, const Arguments& /*arguments*/) {
  std::vector<Value> items = iterate(input);
  if (items.empty()) return Value::undefined("No last item, sequence was empty.");
  return items.back();
}

Value reverse(Evaluator& /*evaluator*/, const Value& input, const Arguments& /*arguments*/) {
  std::vector<Value> items = iterate(input);
  std::reverse(items.begin(), items.end());
  if (!input.is_string()) return Value::sequence(SequenceKind::generator, std::move(items));
  TextBuilder out;
  for (const Value& item : items) out.append(item.text());
  return out.finish();
}

Value items_of(Evaluator& /*evaluator*/, const Value& input, const Arguments& /*arguments*/) {
  if (input.is_undefined()) return Value::sequence(SequenceKind::generator, {});
  if (!input.is_dict()) throw TemplateFailure("Can only get item pairs from a mapping.");
  return Value::sequence(SequenceKind::generator, iterate(call_method(input, "items", {})));
}

Value default_value(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("default", {"default_value", "boolean"});
  const bool replaces = input.is_undefined() || (truth_or(bound[1], false) && !truthy(input));
  if (!replaces) return input;
  return bound[0] == nullptr ? Value(MarkedText()) : *bound[0];
}

/// Sorts stably by `less` of the keys; the meter counts the comparisons.
std::vector<Value> sorted(std::vector<Value> items, const std::vector<Value>& keys, bool reverse) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    return reverse ? less(keys[right], keys[left]) : less(keys[left], keys[right]);
  });
  std::vector<Value> result;
  result.reserve(items.size());
  for (const std::size_t index : order) result.push_back(std::move(items[index]));
  return result;
}

/// The comparison keys of items by an attribute, by several ("a,b") or by the items themselves.
std::vector<Value> sort_keys(const std::vector<Value>& items, const Value* attribute, bool case_sensitive) {
  std::vector<Value> keys;
  if (!given(attribute)) {
    for (const Value& item : items) keys.push_back(comparison_key(item, case_sensitive));
    return keys;
  }
  const MarkedText comma(",");
  const std::vector<Value> paths =
      attribute->is_string() ? split(attribute->text(), &comma, -1) : std::vector<Value>{*attribute};
  for (const Value& item : items) {
    std::vector<Value> parts;
    for (const Value& path : paths) parts.push_back(comparison_key(get_path(item, path), case_sensitive));
    keys.push_back(Value::list(std::move(parts)));
  }
  return keys;
}

Value sort_filter(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("sort", {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> items = iterate(input);
  const std::vector<Value> keys = sort_keys(items, bound[2], truth_or(bound[1], false));
  return Value::list(sorted(std::move(items), keys, truth_or(bound[0], false)));
}

Value dict_sort(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = bound[1] == nullptr ? "key" : to_text(*bound[1]).str();
  if (by != "key" && by != "value") throw TemplateFailure("You can only sort by either \"key\" or \"value\"");
  if (!input.is_dict()) throw TemplateFailure(fmt::format("{} has no items to sort", object_description(input)));
  std::vector<Value> pairs = iterate(call_method(input, "items", {}));
  std::vector<Value> keys;
  for (const Value& pair : pairs) {
    keys.push_back(comparison_key(pair.sequence().items[by == "key" ? 0 : 1], truth_or(bound[0], false)));
  }
  return Value::list(sorted(std::move(pairs), keys, truth_or(bound[2], false)));
}

Value unique(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("unique", {"case_sensitive", "attribute"});
  std::vector<Value> kept;
  Dict seen;
  for (const Value& item : iterate(input)) {
    Value key = comparison_key(given(bound[1]) ? get_path(item, *bound[1]) : item, truth_or(bound[0], false));
    if (seen.find(key) != nullptr) continue;
    seen.set(std::move(key), Value());
    kept.push_back(item);
  }
  return Value::sequence(SequenceKind::generator, std::move(kept));
}

Value extreme(const Value& input, const Arguments& arguments, bool largest) {
  const auto bound = arguments.bind(largest ? "max" : "min", {"case_sensitive", "attribute"});
  const std::vector<Value> items = iterate(input);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  std::size_t best = 0;
  const auto key = [&](std::size_t i) {
    return comparison_key(given(bound[1]) ? get_path(items[i], *bound[1]) : items[i], truth_or(bound[0], false));
  };
  for (std::size_t i = 1; i < items.size(); ++i) {
    if (largest ? less(key(best), key(i), ">") : less(key(i), key(best))) best = i;
  }
  return items[best];
}

Value sum(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("sum", {"attribute", "start"});
  Value total = bound[1] == nullptr ? Value(0) : *bound[1];
  for (const Value& item : iterate(input)) {
    total = apply(BinaryOperator::add, total, given(bound[0]) ? get_path(item, *bound[0]) : item);
  }
  return total;
}

Value batch(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("batch", {"linecount", "fill_with"});
  const Int size = integer_or(bound[0], 1);
  if (size < 1) throw TemplateFailure("batch needs a positive count");
  std::vector<Value> batches;
  std::vector<Value> current;
  for (Value& item : iterate(input)) {
    if (static_cast<Int>(current.size()) == size) batches.push_back(Value::list(std::exchange(current, {})));
    current.push_back(std::move(item));
  }
  if (!current.empty()) {
    if (given(bound[1]) && size > 1'000'000) throw TemplateFailure("batch fills too many places");
    while (given(bound[1]) && static_cast<Int>(current.size()) < size) current.push_back(*bound[1]);
    batches.push_back(Value::list(std::move(current)));
  }
  return Value::sequence(SequenceKind::generator, std::move(batches));
}

Value slice_filter(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("slice", {"slices", "fill_with"});
  const std::vector<Value> items = iterate(input);
  const Int count = integer_or(bound[0], 1);
  if (count < 1 || count > 1'000'000) throw TemplateFailure("slice needs a positive count");
  const std::size_t slices = static_cast<std::size_t>(count);
  const std::size_t longer = items.size() % slices;
  std::vector<Value> result;
  auto at = items.begin();
  for (std::size_t i = 0; i < slices; ++i) {
    const auto end = at + static_cast<std::ptrdiff_t>(items.size() / slices + (i < longer ? 1 : 0));
    std::vector<Value> part(at, end);
    if (given(bound[1]) && i >= longer) part.push_back(*bound[1]);
    result.push_back(Value::list(std::move(part)));
    at = end;
  }
  return Value::sequence(SequenceKind::generator, std::move(result));
}

Value make_group(const Value& key, std::vector<Value> items) {
  auto group = std::make_shared<Sequence>(SequenceKind::tuple, std::vector<Value>{key, Value::list(std::move(items))});
  group->is_group = true;
  return Value(std::shared_ptr<const Sequence>(std::move(group)));
}

Value group_by(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("groupby", {"attribute", "default", "case_sensitive"});
  if (bound[0] == nullptr) throw TemplateFailure("groupby needs an attribute");
  const bool case_sensitive = truth_or(bound[2], false);
  std::vector<Value> items = iterate(input);
  std::vector<Value> keys;
  for (const Value& item : items) keys.push_back(comparison_key(get_path(item, *bound[0], bound[1]), case_sensitive));
  items = sorted(std::move(items), keys, false);
  std::vector<Value> groups;
  for (std::size_t i = 0; i < items.size();) {
    const Value grouper = get_path(items[i], *bound[0], bound[1]);
    const Value key = comparison_key(grouper, case_sensitive);
    std::vector<Value> members;
    while (i < items.size() && equal(comparison_key(get_path(items[i], *bound[0], bound[1]), case_sensitive), key)) {
      members.push_back(items[i++]);
    }
    groups.push_back(make_group(grouper, std::move(members)));
  }
  return Value::list(std::move(groups));
}

}  // namespace

Value get_path(const Value& value, const Value& path, const Value* standard) {
  Value found = value;
  if (path.is_string()) {
    const MarkedText dot(".");
    for (const Value& part : split(path.text(), &dot, -1)) {
      const auto index = parse_integer(part.text().view());
      found = get_item(found, index ? Value(*index) : part);
      if (found.is_undefined() && standard != nullptr && !standard->is_none()) found = *standard;
    }
    return found;
  }
  found = get_item(found, path);
  return found.is_undefined() && standard != nullptr && !standard->is_none() ? *standard : found;
}

Value comparison_key(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value(map_case(value.text(), CaseMapping::lower)) : value;
}

void add_number_filters(FilterTable& table) {
  table["int"] = to_integer;
  table["float"] = to_float;
  table["round"] = round_number;
  table["abs"] = absolute;
}

void add_sequence_filters(FilterTable& table) {
  table["first"] = first_item;
  table["last"] = last_item;
  table["reverse"] = reverse;
  table["items"] = items_of;
  table["default"] = table["d"] = default_value;
  table["sort"] = sort_filter;
  table["dictsort"] = dict_sort;
  table["unique"] = unique;
  table["sum"] = sum;
  table["batch"] = batch;
  table["slice"] = slice_filter;
  table["groupby"] = group_by;
  table["min"] = [](Evaluator&, const Value& input, const Arguments& arguments) {
    return extreme(input, arguments, false);
  };
  table["max"] = [](Evaluator&, const Value& input, const Arguments& arguments) {
    return extreme(input, arguments, true);
  };
  table["length"] =
      table["count"] = [](Evaluator&, const Value& input, const Arguments&) -> Value { return length(input); };
  table["list"] = [](Evaluator&, const Value& input, const Arguments&) { return Value::list(iterate(input)); };
}

}  // namespace tensorfold::text::jinja
