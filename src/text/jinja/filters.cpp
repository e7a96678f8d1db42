#include "text/jinja/filters.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/operators.h"

namespace tensorfold::text::jinja {

namespace {

/// The arguments behind the first `count`.
Arguments rest_of(const Arguments& arguments, std::size_t count) {
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(count), arguments.positional.end());
  rest.named = arguments.named;
  return rest;
}

/// The items to go through; none for anything that counts as false, as Jinja2 has it.
std::vector<Value> items_of(const Value& input) { return truthy(input) ? iterate(input) : std::vector<Value>(); }

std::string name_argument(const Arguments& arguments, std::size_t index) {
  if (!arguments.positional[index].is_string()) throw TemplateFailure("the name of a filter or test must be a string");
  return arguments.positional[index].text().str();
}

Value map_filter(Evaluator& evaluator, const Value& input, const Arguments& arguments) {
  std::vector<Value> results;
  if (arguments.positional.empty()) {
    const auto bound = arguments.bind("map", {"attribute", "default"});
    if (bound[0] == nullptr) throw TemplateFailure("map requires a filter argument");
    for (const Value& item : items_of(input)) results.push_back(get_path(item, *bound[0], bound[1]));
  } else {
    const std::string name = name_argument(arguments, 0);
    const Arguments rest = rest_of(arguments, 1);
    for (const Value& item : items_of(input)) results.push_back(evaluator.apply_filter(name, item, rest));
  }
  return Value::sequence(SequenceKind::generator, std::move(results));
}

/// select, reject, selectattr and rejectattr: the items that a test accepts or refuses.
Filter make_selection(bool by_attribute, bool keeps_accepted) {
  return [=](Evaluator& evaluator, const Value& input, const Arguments& arguments) -> Value {
    const std::size_t test_index = by_attribute ? 1 : 0;
    if (by_attribute && arguments.positional.empty()) throw TemplateFailure("Missing parameter for attribute name");
    const bool has_name = arguments.positional.size() > test_index;
    const std::string name = has_name ? name_argument(arguments, test_index) : std::string();
    const Arguments rest = rest_of(arguments, std::min(arguments.positional.size(), test_index + 1));
    std::vector<Value> kept;
    for (const Value& item : items_of(input)) {
      const Value subject = by_attribute ? get_path(item, arguments.positional[0]) : item;
      if ((has_name ? evaluator.apply_test(name, subject, rest) : truthy(subject)) == keeps_accepted)
        kept.push_back(item);
    }
    return Value::sequence(SequenceKind::generator, std::move(kept));
  };
}

Value attribute_filter(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("attr", {"name"});
  if (bound[0] == nullptr) throw TemplateFailure("attr needs a name");
  const std::string name = to_text(*bound[0]).str();
  // Unlike a dot, this filter never looks at the items of a mapping.
  if (input.is_dict() && input.dict().find(std::string_view(name)) != nullptr) {
    return get_attribute(Value::dict({}), name);
  }
  return get_attribute(input, name);
}

const FilterTable& filters() {
  static const FilterTable table = [] {
    FilterTable made;
    add_text_filters(made);
    add_number_filters(made);
    add_sequence_filters(made);
    add_selection_filters(made);
    return made;
  }();
  return table;
}

}  // namespace

void add_selection_filters(FilterTable& table) {
  table["map"] = map_filter;
  table["select"] = make_selection(false, true);
  table["reject"] = make_selection(false, false);
  table["selectattr"] = make_selection(true, true);
  table["rejectattr"] = make_selection(true, false);
  table["attr"] = attribute_filter;
}

const Filter* find_filter(std::string_view name) {
  const auto found = filters().find(name);
  return found == filters().end() ? nullptr : &found->second;
}

Value Evaluator::apply_filter(std::string_view name, const Value& input, const Arguments& arguments) {
  const Filter* filter = find_filter(name);
  if (filter == nullptr) throw TemplateFailure(fmt::format("No filter named '{}'.", name));
  return (*filter)(*this, input, arguments);
}

}  // namespace tensorfold::text::jinja
