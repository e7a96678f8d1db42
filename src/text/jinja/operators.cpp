#include "text/jinja/operators.h"

#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "text/jinja/format_text.h"

namespace tensorfold::text::jinja {

namespace {

[[noreturn]] void integer_overflow() { throw TemplateFailure("an integer leaves 128 bits"); }

Int checked_multiply(Int left, Int right) {
  if (left == 0 || right == 0) return 0;
  const Int product = static_cast<Int>(static_cast<unsigned __int128>(left) * static_cast<unsigned __int128>(right));
  const Int minus_one = -1;
  const Int lowest = static_cast<Int>(static_cast<unsigned __int128>(1) << 127U);
  if ((left == minus_one && right == lowest) || (right == minus_one && left == lowest) || product / right != left) {
    integer_overflow();
  }
  return product;
}

Int floor_divide(Int left, Int right) {
  if (right == 0) throw TemplateFailure("integer division or modulo by zero");
  if (right == -1) return checked_multiply(left, right);
  const Int quotient = left / right;
  return quotient - Int{(left % right != 0) && ((left < 0) != (right < 0))};
}

Value integer_power(Int base, Int exponent) {
  if (exponent < 0) return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  Int result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1) result = checked_multiply(result, base);
    exponent /= 2;
    if (exponent > 0) base = checked_multiply(base, base);
  }
  return result;
}

Value integer_arithmetic(BinaryOperator operation, Int left, Int right) {
  Int result = 0;
  switch (operation) {
    case BinaryOperator::add:
      if (__builtin_add_overflow(left, right, &result)) integer_overflow();
      return result;
    case BinaryOperator::subtract:
      if (__builtin_sub_overflow(left, right, &result)) integer_overflow();
      return result;
    case BinaryOperator::multiply:
      return checked_multiply(left, right);
    case BinaryOperator::divide:
      if (right == 0) throw TemplateFailure("division by zero");
      return static_cast<double>(left) / static_cast<double>(right);
    case BinaryOperator::floor_divide:
      return floor_divide(left, right);
    case BinaryOperator::modulo:
      if (right == -1) return Int{0};
      return left - floor_divide(left, right) * right;
    case BinaryOperator::power:
      return integer_power(left, right);
  }
  return result;
}

Value float_arithmetic(BinaryOperator operation, double left, double right) {
  switch (operation) {
    case BinaryOperator::add:
      return left + right;
    case BinaryOperator::subtract:
      return left - right;
    case BinaryOperator::multiply:
      return left * right;
    case BinaryOperator::power: {
      const double result = std::pow(left, right);
      if (!std::isfinite(result) && std::isfinite(left) && std::isfinite(right)) {
        throw TemplateFailure("a power has no finite value");
      }
      return result;
    }
    default:
      break;
  }
  if (right == 0.0) throw TemplateFailure("float division by zero");
  if (operation == BinaryOperator::divide) return left / right;
  double remainder = std::fmod(left, right);
  if (remainder != 0.0 && (remainder < 0.0) != (right < 0.0)) remainder += right;
  if (operation == BinaryOperator::modulo) return remainder;
  return std::floor((left - remainder) / right + 0.5);
}

std::string_view symbol_of(BinaryOperator operation) {
  switch (operation) {
    case BinaryOperator::add:
      return "+";
    case BinaryOperator::subtract:
      return "-";
    case BinaryOperator::multiply:
      return "*";
    case BinaryOperator::divide:
      return "/";
    case BinaryOperator::floor_divide:
      return "//";
    case BinaryOperator::modulo:
      return "%";
    case BinaryOperator::power:
      return "** or pow()";
  }
  return "?";
}

Value add_texts(const MarkedText& left, const MarkedText& right) {
  const bool markup = left.is_markup() || right.is_markup();
  TextBuilder builder;
  builder.append(markup && !left.is_markup() ? escape_html(left) : left);
  builder.append(markup && !right.is_markup() ? escape_html(right) : right);
  return builder.finish(markup);
}

Value repeat(const Value& value, Int count) {
  const Int bounded = count < 0 ? 0 : count;
  if (value.is_string()) {
    const MarkedText& text = value.text();
    if (bounded > Int{1} << 40U) check_text_size(text.empty() ? 0 : static_cast<std::size_t>(1) << 40U);
    if (text.empty()) return value;
    check_text_size(text.size() * static_cast<std::size_t>(bounded));
    TextBuilder builder;
    for (Int i = 0; i < bounded; ++i) builder.append(text);
    return builder.finish(text.is_markup());
  }
  const Sequence& sequence = value.sequence();
  if (sequence.items.empty()) return value;
  if (bounded * static_cast<Int>(sequence.items.size()) > 10'000'000) throw TemplateFailure("a list grows too long");
  std::vector<Value> items;
  for (Int i = 0; i < bounded; ++i) items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  return Value::sequence(sequence.kind, std::move(items));
}

bool repeatable(const Value& value) {
  return value.is_string() || value.is_list() || value.is_sequence(SequenceKind::tuple);
}

Value add_sequences(const Sequence& left, const Sequence& right) {
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return Value::sequence(left.kind, std::move(items));
}

bool equal_items(const std::vector<Value>& left, const std::vector<Value>& right) {
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!equal(left[i], right[i])) return false;
  }
  return true;
}

bool equal_dicts(const Dict& left, const Dict& right) {
  if (left.size() != right.size()) return false;
  for (const auto& [key, value] : left.entries()) {
    const Value* other = right.find(key);
    if (other == nullptr || !equal(value, *other)) return false;
  }
  return true;
}

}  // namespace

bool truthy(const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  if (value.is_integral()) return value.integer() != 0;
  if (value.is_float()) return value.number() != 0.0;
  if (value.is_string()) return !value.text().empty();
  if (value.is_dict()) return value.dict().size() != 0;
  if (value.is_sequence()) return value.is_sequence(SequenceKind::generator) || !value.sequence().items.empty();
  return true;
}

bool equal(const Value& left, const Value& right) {
  if (RenderMeter* meter = RenderMeter::current()) meter->step();
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral()) return left.integer() == right.integer();
    return left.number() == right.number();
  }
  if (left.is_string() && right.is_string()) return left.text().view() == right.text().view();
  if (left.is_none() || left.is_undefined()) return left.storage().index() == right.storage().index();
  if (left.is_dict() && right.is_dict()) return equal_dicts(left.dict(), right.dict());
  if (left.is_sequence() && right.is_sequence()) {
    if (&left.sequence() == &right.sequence()) return true;
    return left.sequence().kind == right.sequence().kind && left.sequence().kind != SequenceKind::generator &&
           equal_items(left.sequence().items, right.sequence().items);
  }
  if (left.is_object() && right.is_object()) return &left.object() == &right.object();
  return false;
}

bool less(const Value& left, const Value& right, std::string_view symbol) {
  if (RenderMeter* meter = RenderMeter::current()) meter->step();
  require_defined(left);
  require_defined(right);
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral()) return left.integer() < right.integer();
    return left.number() < right.number();
  }
  if (left.is_string() && right.is_string()) return left.text().view() < right.text().view();
  if (left.is_sequence() && right.is_sequence() && left.sequence().kind == right.sequence().kind &&
      (left.is_list() || left.is_sequence(SequenceKind::tuple))) {
    const auto& first = left.sequence().items;
    const auto& second = right.sequence().items;
    for (std::size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
      if (!equal(first[i], second[i])) return less(first[i], second[i], symbol);
    }
    return first.size() < second.size();
  }
  throw TemplateFailure(
      fmt::format("'{}' not supported between instances of '{}' and '{}'", symbol, type_name(left), type_name(right)));
}

std::size_t hash_value(const Value& value) {
  if (value.is_string()) return std::hash<std::string_view>{}(value.text().view());
  if (value.is_number()) return std::hash<double>{}(value.number());
  if (value.is_none() || value.is_undefined()) return 7;
  if (value.is_object()) return std::hash<const void*>{}(&value.object());
  if (value.is_sequence(SequenceKind::tuple)) {
    std::size_t hash = 17;
    for (const Value& item : value.sequence().items) hash = hash * 31 + hash_value(item);
    return hash;
  }
  throw TemplateFailure(fmt::format("unhashable type: '{}'", type_name(value)));
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      throw TemplateFailure(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
    }
    return container.text().view().find(item.text().view()) != std::string_view::npos;
  }
  if (container.is_dict()) return container.dict().find(item) != nullptr;
  if (container.is_undefined()) return false;
  if (!container.is_sequence()) {
    throw TemplateFailure(fmt::format("argument of type '{}' is not iterable", type_name(container)));
  }
  for (const Value& candidate : container.sequence().items) {
    if (equal(candidate, item)) return true;
  }
  return false;
}

Value apply(BinaryOperator operation, const Value& left, const Value& right) {
  if (left.is_string() && operation == BinaryOperator::modulo) return percent_format(left.text(), right);
  require_defined(left);
  require_defined(right);
  if (left.is_number() && right.is_number()) {
    if (left.is_integral() && right.is_integral())
      return integer_arithmetic(operation, left.integer(), right.integer());
    return float_arithmetic(operation, left.number(), right.number());
  }
  if (operation == BinaryOperator::add) {
    if (left.is_string() && right.is_string()) return add_texts(left.text(), right.text());
    if (left.is_sequence() && right.is_sequence() && left.sequence().kind == right.sequence().kind &&
        repeatable(left)) {
      return add_sequences(left.sequence(), right.sequence());
    }
    if (left.is_string()) {
      throw TemplateFailure(fmt::format("can only concatenate str (not \"{}\") to str", type_name(right)));
    }
  }
  if (operation == BinaryOperator::multiply) {
    if (repeatable(left) && right.is_integral()) return repeat(left, right.integer());
    if (repeatable(right) && left.is_integral()) return repeat(right, left.integer());
  }
  throw TemplateFailure(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", symbol_of(operation),
                                    type_name(left), type_name(right)));
}

Value negate(const Value& value) {
  require_defined(value);
  if (value.is_integral()) return integer_arithmetic(BinaryOperator::subtract, 0, value.integer());
  if (value.is_float()) return -value.number();
  throw TemplateFailure(fmt::format("bad operand type for unary -: '{}'", type_name(value)));
}

std::vector<Value> iterate(const Value& value) {
  std::vector<Value> items;
  if (value.is_sequence()) {
    const Sequence& sequence = value.sequence();
    if (sequence.kind != SequenceKind::generator) {
      items = sequence.items;
    } else if (!sequence.consumed) {
      items = sequence.items;
      sequence.consumed = true;
    }
  } else if (value.is_dict()) {
    for (const auto& entry : value.dict().entries()) items.push_back(entry.first);
  } else if (value.is_string()) {
    const MarkedText& text = value.text();
    if (RenderMeter* meter = RenderMeter::current()) meter->step(text.size());
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = code_point_end(text.view(), at);
      items.emplace_back(text.slice(at, end).with_markup(false));
      at = end;
    }
  } else if (!value.is_undefined()) {
    throw TemplateFailure(fmt::format("'{}' object is not iterable", type_name(value)));
  }
  if (RenderMeter* meter = RenderMeter::current()) meter->step(items.size());
  return items;
}

std::size_t length(const Value& value) {
  if (value.is_string()) return value.text().length();
  if (value.is_dict()) return value.dict().size();
  if (value.is_undefined()) return 0;
  if (value.is_sequence() && !value.is_sequence(SequenceKind::generator)) return value.sequence().items.size();
  throw TemplateFailure(fmt::format("object of type '{}' has no len()", type_name(value)));
}

}  // namespace tensorfold::text::jinja
