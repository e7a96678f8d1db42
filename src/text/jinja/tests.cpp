// The tests of the template language: `value is name` (filters.h).
#include <fmt/format.h>

#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace tensorfold::text::jinja {

namespace {

using Test = std::function<bool(const Value& input, const Arguments&)>;
using TestTable = std::map<std::string_view, Test>;

const Value& argument_of(const Arguments& arguments) {
  if (arguments.positional.size() + arguments.named.size() != 1) throw TemplateFailure("the test needs one argument");
  return arguments.positional.empty() ? arguments.named.front().second : arguments.positional.front();
}

bool same_object(const Value& left, const Value& right) {
  if (left.is_sequence() && right.is_sequence()) return &left.sequence() == &right.sequence();
  if (left.is_dict() && right.is_dict()) return left.dict_pointer() == right.dict_pointer();
  return left.storage().index() == right.storage().index() && equal(left, right);
}

bool is_indexable(const Value& value) {
  const bool view = value.is_sequence(SequenceKind::dict_keys) || value.is_sequence(SequenceKind::dict_values) ||
                    value.is_sequence(SequenceKind::dict_items) || value.is_sequence(SequenceKind::generator);
  return value.is_string() || value.is_dict() || value.is_undefined() || (value.is_sequence() && !view);
}

bool divides(const Value& value, const Value& divisor) {
  return !truthy(apply(BinaryOperator::modulo, value, divisor));
}

bool has_case(const Value& value, std::string_view method) {
  return call_string_method(to_text(value), method, {}).boolean();
}

void add_type_tests(TestTable& table) {
  table["defined"] = [](const Value& input, const Arguments&) { return !input.is_undefined(); };
  table["undefined"] = [](const Value& input, const Arguments&) { return input.is_undefined(); };
  table["none"] = [](const Value& input, const Arguments&) { return input.is_none(); };
  table["boolean"] = [](const Value& input, const Arguments&) { return input.is_bool(); };
  table["true"] = [](const Value& input, const Arguments&) { return input.is_bool() && input.boolean(); };
  table["false"] = [](const Value& input, const Arguments&) { return input.is_bool() && !input.boolean(); };
  table["integer"] = [](const Value& input, const Arguments&) { return input.is_int(); };
  table["float"] = [](const Value& input, const Arguments&) { return input.is_float(); };
  table["number"] = [](const Value& input, const Arguments&) { return input.is_number(); };
  table["string"] = [](const Value& input, const Arguments&) { return input.is_string(); };
  table["mapping"] = [](const Value& input, const Arguments&) { return input.is_dict(); };
  table["sequence"] = [](const Value& input, const Arguments&) { return is_indexable(input); };
  table["iterable"] = [](const Value& input, const Arguments&) {
    return input.is_string() || input.is_dict() || input.is_sequence() || input.is_undefined() ||
           input.as<LoopContext>() != nullptr;
  };
  table["callable"] = [](const Value& input, const Arguments&) {
    return input.is_undefined() || (input.is_object() && input.object().callable());
  };
  table["escaped"] = [](const Value& input, const Arguments&) { return input.is_string() && input.text().is_markup(); };
}

void add_comparison_tests(TestTable& table) {
  table["eq"] = table["equalto"] =
      table["=="] = [](const Value& input, const Arguments& arguments) { return equal(input, argument_of(arguments)); };
  table["ne"] = table["!="] = [](const Value& input, const Arguments& arguments) {
    return !equal(input, argument_of(arguments));
  };
  table["lt"] = table["lessthan"] =
      table["<"] = [](const Value& input, const Arguments& arguments) { return less(input, argument_of(arguments)); };
  table["gt"] = table["greaterthan"] = table[">"] = [](const Value& input, const Arguments& arguments) {
    return less(argument_of(arguments), input, ">");
  };
  table["le"] = table["<="] = [](const Value& input, const Arguments& arguments) {
    return less(input, argument_of(arguments), "<=") || equal(input, argument_of(arguments));
  };
  table["ge"] = table[">="] = [](const Value& input, const Arguments& arguments) {
    return less(argument_of(arguments), input, ">=") || equal(input, argument_of(arguments));
  };
  table["in"] = [](const Value& input, const Arguments& arguments) { return contains(argument_of(arguments), input); };
  table["sameas"] = [](const Value& input, const Arguments& arguments) {
    return same_object(input, argument_of(arguments));
  };
}

void add_property_tests(TestTable& table) {
  table["odd"] = [](const Value& input, const Arguments&) {
    return equal(apply(BinaryOperator::modulo, input, Value(2)), Value(1));
  };
  table["even"] = [](const Value& input, const Arguments&) { return divides(input, Value(2)); };
  table["divisibleby"] = [](const Value& input, const Arguments& arguments) {
    return divides(input, argument_of(arguments));
  };
  table["lower"] = [](const Value& input, const Arguments&) { return has_case(input, "islower"); };
  table["upper"] = [](const Value& input, const Arguments&) { return has_case(input, "isupper"); };
  table["filter"] = [](const Value& input, const Arguments&) {
    return input.is_string() && find_filter(input.text().view()) != nullptr;
  };
  table["test"] = [](const Value& input, const Arguments&) {
    return input.is_string() && has_test(input.text().view());
  };
}

const TestTable& tests() {
  static const TestTable table = [] {
    TestTable made;
    add_type_tests(made);
    add_comparison_tests(made);
    add_property_tests(made);
    return made;
  }();
  return table;
}

}  // namespace

bool has_test(std::string_view name) { return tests().contains(name); }

bool Evaluator::apply_test(std::string_view name, const Value& input, const Arguments& arguments) {
  const auto found = tests().find(name);
  if (found == tests().end()) throw TemplateFailure(fmt::format("No test named '{}'.", name));
  return found->second(input, arguments);
}

}  // namespace tensorfold::text::jinja
