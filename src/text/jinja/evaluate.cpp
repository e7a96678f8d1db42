// The expressions of the evaluator (evaluator.h).
#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/evaluator.h"
#include "text/jinja/methods.h"

namespace tensorfold::text::jinja {

Value Evaluator::evaluate(const Expression& expression) {
  const NestingGuard guard(nesting_, limits_.nesting);
  if (RenderMeter* meter = RenderMeter::current()) meter->step();
  line_ = expression.line;
  switch (expression.kind) {
    case ExpressionKind::constant:
      return expression.value;
    case ExpressionKind::name:
      return look_up(expression.name);
    case ExpressionKind::list:
    case ExpressionKind::tuple:
    case ExpressionKind::dict:
      return evaluate_container(expression);
    case ExpressionKind::attribute:
      return get_attribute(evaluate(*expression.operands[0]), expression.name);
    case ExpressionKind::call:
      return evaluate_call(expression);
    case ExpressionKind::filter:
      return apply_filter(expression.name, evaluate(*expression.operands[0]), evaluate_arguments(expression.arguments));
    case ExpressionKind::test:
      return apply_test(expression.name, evaluate(*expression.operands[0]), evaluate_arguments(expression.arguments));
    case ExpressionKind::conditional:
      return evaluate_conditional(expression);
    case ExpressionKind::concatenate:
      return evaluate_concatenation(expression);
    case ExpressionKind::compare:
      return evaluate_comparison(expression);
    default:
      return evaluate_operator(expression);
  }
}

Value Evaluator::evaluate_operator(const Expression& expression) {
  Value first = evaluate(*expression.operands[0]);
  switch (expression.kind) {
    case ExpressionKind::logical_not:
      return !truthy(first);
    case ExpressionKind::logical_and:
      return truthy(first) ? evaluate(*expression.operands[1]) : first;
    case ExpressionKind::logical_or:
      return truthy(first) ? first : evaluate(*expression.operands[1]);
    case ExpressionKind::negate:
      return negate(first);
    case ExpressionKind::plus:
      return negate(negate(first));
    case ExpressionKind::item:
      return get_item(first, evaluate(*expression.operands[1]));
    case ExpressionKind::slice: {
      const Value start = evaluate(*expression.operands[1]);
      const Value stop = evaluate(*expression.operands[2]);
      return get_slice(first, start, stop, evaluate(*expression.operands[3]));
    }
    default:
      return apply(expression.operation, first, evaluate(*expression.operands[1]));
  }
}

Value Evaluator::evaluate_container(const Expression& expression) {
  std::vector<Value> items;
  items.reserve(expression.operands.size());
  for (const auto& operand : expression.operands) items.push_back(evaluate(*operand));
  if (expression.kind == ExpressionKind::list) return Value::list(std::move(items));
  if (expression.kind == ExpressionKind::tuple) return Value::tuple(std::move(items));
  std::vector<std::pair<Value, Value>> entries;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) entries.emplace_back(items[i], items[i + 1]);
  return Value::dict(std::move(entries));
}

Value Evaluator::evaluate_conditional(const Expression& expression) {
  if (truthy(evaluate(*expression.operands[1]))) return evaluate(*expression.operands[0]);
  if (expression.operands.size() > 2) return evaluate(*expression.operands[2]);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
}

Value Evaluator::evaluate_concatenation(const Expression& expression) {
  std::vector<Value> values;
  bool markup = autoescape_;
  for (const auto& operand : expression.operands) values.push_back(evaluate(*operand));
  TextBuilder out;
  for (const Value& value : values) out.append(markup ? escape_value(value) : to_text(value));
  return out.finish(markup);
}

Value Evaluator::evaluate_comparison(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  for (std::size_t i = 0; i < expression.comparisons.size(); ++i) {
    Value right = evaluate(*expression.operands[i + 1]);
    if (!compare(expression.comparisons[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

bool Evaluator::compare(Comparison comparison, const Value& left, const Value& right) {
  // Not-a-number compares false with everything, so >= is not the opposite of <.
  const auto at_most = [](const Value& first, const Value& second, std::string_view symbol) {
    return less(first, second, symbol) || equal(first, second);
  };
  switch (comparison) {
    case Comparison::equal:
      return equal(left, right);
    case Comparison::not_equal:
      return !equal(left, right);
    case Comparison::less:
      return less(left, right);
    case Comparison::less_equal:
      return at_most(left, right, "<=");
    case Comparison::greater:
      return less(right, left, ">");
    case Comparison::greater_equal:
      return at_most(right, left, ">=");
    case Comparison::in:
      return contains(right, left);
    case Comparison::not_in:
      return !contains(right, left);
  }
  return false;
}

Arguments Evaluator::evaluate_arguments(const CallArguments& written) {
  Arguments arguments;
  arguments.positional.reserve(written.positional.size());
  for (const auto& expression : written.positional) arguments.positional.push_back(evaluate(*expression));
  for (const auto& [name, expression] : written.named) arguments.named.emplace_back(name, evaluate(*expression));
  if (written.star) {
    for (Value& value : jinja::iterate(evaluate(*written.star))) arguments.positional.push_back(std::move(value));
  }
  if (written.double_star) {
    const Value mapping = evaluate(*written.double_star);
    if (!mapping.is_dict()) throw TemplateFailure("argument after ** must be a mapping");
    for (const auto& [key, value] : mapping.dict().entries()) {
      if (!key.is_string()) throw TemplateFailure("keywords must be strings");
      arguments.named.emplace_back(key.text().str(), value);
    }
  }
  return arguments;
}

Value Evaluator::evaluate_call(const Expression& expression) {
  const Expression& callee = *expression.operands[0];
  if (callee.kind == ExpressionKind::attribute) {
    const Value receiver = evaluate(*callee.operands[0]);
    require_defined(receiver);
    if (has_method(receiver, callee.name)) {
      return call_method(receiver, callee.name, evaluate_arguments(expression.arguments));
    }
    const Value found = get_attribute(receiver, callee.name);
    return call(found, evaluate_arguments(expression.arguments));
  }
  const Value found = evaluate(callee);
  return call(found, evaluate_arguments(expression.arguments));
}

Value Evaluator::call(const Value& callee, const Arguments& arguments) {
  require_defined(callee);
  if (!callee.is_object()) throw TemplateFailure(fmt::format("'{}' object is not callable", type_name(callee)));
  const NestingGuard guard(nesting_, limits_.nesting);
  return callee.object().call(*this, arguments);
}

Value Evaluator::filter_text(const Expression& filter, MarkedText text) {
  // A chain of filters ends at the one that has no operand: there the captured text goes in.
  Value input = filter.operands.empty() ? Value(std::move(text)) : filter_text(*filter.operands[0], std::move(text));
  return apply_filter(filter.name, input, evaluate_arguments(filter.arguments));
}

}  // namespace tensorfold::text::jinja
