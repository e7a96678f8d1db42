#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace tensorfold::text::jinja {

Token ExpressionParser::take() {
  Token token = current();
  if (!at(TokenKind::end)) ++at_;
  return token;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  take();
  return true;
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  take();
  return true;
}

std::string ExpressionParser::expect_name() {
  if (!at(TokenKind::name)) fail_here(fmt::format("expected a name, got '{}'", describe(current())));
  return take().text;
}

void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail_here(fmt::format("expected '{}', got '{}'", text, describe(current())));
}

void ExpressionParser::expect(TokenKind kind, std::string_view description) {
  if (!at(kind)) fail_here(fmt::format("expected '{}', got '{}'", description, describe(current())));
  take();
}

void ExpressionParser::fail_here(std::string_view message) const {
  syntax_error(current().line, current().column, message);
}

ExpressionPointer ExpressionParser::make(ExpressionKind kind) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = current().line;
  return node;
}

void ExpressionParser::add_depth(Expression& node, const Expression* operand) const {
  if (operand == nullptr) return;
  node.depth = std::max(node.depth, operand->depth + 1);
  if (node.depth > max_syntax_depth) fail_here("the expression nests too deeply");
}

ExpressionPointer ExpressionParser::make(ExpressionKind kind, std::vector<ExpressionPointer> operands) const {
  ExpressionPointer node = make(kind);
  for (const auto& operand : operands) add_depth(*node, operand.get());
  node->operands = std::move(operands);
  return node;
}

ExpressionPointer ExpressionParser::parse_expression(bool with_condition) {
  if (nesting_ >= max_syntax_depth) fail_here("the template nests too deeply");
  ++nesting_;
  ExpressionPointer node = with_condition ? parse_conditional() : parse_or();
  --nesting_;
  return node;
}

ExpressionPointer ExpressionParser::parse_conditional() {
  ExpressionPointer value = parse_or();
  while (skip_name("if")) {
    ExpressionPointer condition = parse_or();
    if (skip_name("else")) {
      ExpressionPointer otherwise = parse_expression();
      value = make_over(ExpressionKind::conditional, std::move(value), std::move(condition), std::move(otherwise));
    } else {
      value = make_over(ExpressionKind::conditional, std::move(value), std::move(condition));
    }
  }
  return value;
}

ExpressionPointer ExpressionParser::parse_or() {
  ExpressionPointer left = parse_and();
  while (skip_name("or")) {
    ExpressionPointer right = parse_and();
    left = make_over(ExpressionKind::logical_or, std::move(left), std::move(right));
  }
  return left;
}

ExpressionPointer ExpressionParser::parse_and() {
  ExpressionPointer left = parse_not();
  while (skip_name("and")) {
    ExpressionPointer right = parse_not();
    left = make_over(ExpressionKind::logical_and, std::move(left), std::move(right));
  }
  return left;
}

ExpressionPointer ExpressionParser::parse_not() {
  int count = 0;
  while (skip_name("not")) ++count;
  ExpressionPointer node = parse_comparison();
  for (; count > 0; --count) node = make_over(ExpressionKind::logical_not, std::move(node));
  return node;
}

bool ExpressionParser::take_comparison(Comparison& comparison) {
  static const std::pair<std::string_view, Comparison> symbols[] = {
      {"==", Comparison::equal},      {"!=", Comparison::not_equal}, {"<", Comparison::less},
      {"<=", Comparison::less_equal}, {">", Comparison::greater},    {">=", Comparison::greater_equal},
  };
  for (const auto& [symbol, found] : symbols) {
    if (skip_operator(symbol)) {
      comparison = found;
      return true;
    }
  }
  if (skip_name("in")) {
    comparison = Comparison::in;
    return true;
  }
  if (at_name("not") && ahead().kind == TokenKind::name && ahead().text == "in") {
    take();
    take();
    comparison = Comparison::not_in;
    return true;
  }
  return false;
}

ExpressionPointer ExpressionParser::parse_comparison() {
  ExpressionPointer first = parse_sum();
  std::vector<Comparison> comparisons;
  std::vector<ExpressionPointer> operands;
  operands.push_back(std::move(first));
  for (Comparison comparison{}; take_comparison(comparison);) {
    comparisons.push_back(comparison);
    operands.push_back(parse_sum());
  }
  if (comparisons.empty()) return std::move(operands.front());
  ExpressionPointer node = make(ExpressionKind::compare, std::move(operands));
  node->comparisons = std::move(comparisons);
  return node;
}

ExpressionPointer ExpressionParser::parse_sum() {
  ExpressionPointer left = parse_concatenation();
  while (at_operator("+") || at_operator("-")) {
    const BinaryOperator operation = take().text == "+" ? BinaryOperator::add : BinaryOperator::subtract;
    ExpressionPointer right = parse_concatenation();
    left = make_over(ExpressionKind::binary, std::move(left), std::move(right));
    left->operation = operation;
  }
  return left;
}

ExpressionPointer ExpressionParser::parse_concatenation() {
  ExpressionPointer first = parse_product();
  if (!at_operator("~")) return first;
  std::vector<ExpressionPointer> operands;
  operands.push_back(std::move(first));
  while (skip_operator("~")) operands.push_back(parse_product());
  return make(ExpressionKind::concatenate, std::move(operands));
}

ExpressionPointer ExpressionParser::parse_product() {
  static const std::pair<std::string_view, BinaryOperator> symbols[] = {
      {"*", BinaryOperator::multiply},
      {"/", BinaryOperator::divide},
      {"//", BinaryOperator::floor_divide},
      {"%", BinaryOperator::modulo},
  };
  ExpressionPointer left = parse_power();
  while (true) {
    const auto found = std::find_if(std::begin(symbols), std::end(symbols),
                                    [&](const auto& symbol) { return at_operator(symbol.first); });
    if (found == std::end(symbols)) return left;
    take();
    ExpressionPointer right = parse_power();
    left = make_over(ExpressionKind::binary, std::move(left), std::move(right));
    left->operation = found->second;
  }
}

ExpressionPointer ExpressionParser::parse_power() {
  ExpressionPointer left = parse_unary();
  while (skip_operator("**")) {
    ExpressionPointer right = parse_unary();
    left = make_over(ExpressionKind::binary, std::move(left), std::move(right));
    left->operation = BinaryOperator::power;
  }
  return left;
}

ExpressionPointer ExpressionParser::parse_unary(bool with_filters) {
  std::vector<ExpressionKind> signs;
  while (at_operator("-") || at_operator("+")) {
    signs.push_back(take().text == "-" ? ExpressionKind::negate : ExpressionKind::plus);
  }
  ExpressionPointer node = parse_postfix(parse_primary());
  for (auto sign = signs.rbegin(); sign != signs.rend(); ++sign) {
    node = parse_postfix(make_over(*sign, std::move(node)));
  }
  return with_filters ? parse_filters(std::move(node)) : std::move(node);
}

ExpressionPointer ExpressionParser::parse_primary() {
  if (at(TokenKind::name)) return parse_name();
  if (at(TokenKind::string)) {
    std::string text;
    ExpressionPointer node = make(ExpressionKind::constant);
    while (at(TokenKind::string)) text += take().text;
    node->value = Value(std::move(text));
    return node;
  }
  if (at(TokenKind::integer) || at(TokenKind::floating)) return parse_number();
  if (skip_operator("(")) {
    ExpressionPointer node = parse_tuple(true, {}, true);
    expect_operator(")");
    return node;
  }
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  fail_here(fmt::format("unexpected '{}'", describe(current())));
}

ExpressionPointer ExpressionParser::parse_name() {
  ExpressionPointer node = make(ExpressionKind::constant);
  std::string name = take().text;
  if (name == "true" || name == "True") {
    node->value = Value(true);
  } else if (name == "false" || name == "False") {
    node->value = Value(false);
  } else if (name != "none" && name != "None") {
    node->kind = ExpressionKind::name;
    mentioned_names_.push_back(name);
    node->name = std::move(name);
  }
  return node;
}

ExpressionPointer ExpressionParser::parse_number() {
  ExpressionPointer node = make(ExpressionKind::constant);
  const Token token = take();
  if (token.kind == TokenKind::floating) {
    double value = 0;
    std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
    node->value = Value(value);
    return node;
  }
  const char letter = token.text.size() > 2 && token.text[0] == '0' ? static_cast<char>(token.text[1] | 0x20) : '0';
  const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
  const auto value =
      parse_integer(base == 10 ? std::string_view(token.text) : std::string_view(token.text).substr(2), base);
  if (!value) fail_here("an integer is beyond 128 bits");
  node->value = Value(*value);
  return node;
}

ExpressionPointer ExpressionParser::parse_list() {
  expect_operator("[");
  std::vector<ExpressionPointer> items;
  while (!at_operator("]")) {
    if (!items.empty()) expect_operator(",");
    if (at_operator("]")) break;
    items.push_back(parse_expression());
  }
  expect_operator("]");
  return make(ExpressionKind::list, std::move(items));
}

ExpressionPointer ExpressionParser::parse_dict() {
  expect_operator("{");
  std::vector<ExpressionPointer> items;
  while (!at_operator("}")) {
    if (!items.empty()) expect_operator(",");
    if (at_operator("}")) break;
    items.push_back(parse_expression());
    expect_operator(":");
    items.push_back(parse_expression());
  }
  expect_operator("}");
  return make(ExpressionKind::dict, std::move(items));
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return at(TokenKind::variable_end) || at(TokenKind::block_end) || at_operator(")") ||
         (!end_name.empty() && at_name(end_name));
}

ExpressionPointer ExpressionParser::parse_tuple(bool with_condition, std::string_view end_name, bool parenthesised) {
  std::vector<ExpressionPointer> items;
  bool is_tuple = false;
  while (true) {
    if (is_tuple && !items.empty() && at_tuple_end(end_name)) break;
    if (items.empty() && at_tuple_end(end_name)) break;
    items.push_back(parse_expression(with_condition));
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items.front());
    if (!parenthesised) fail_here(fmt::format("expected an expression, got '{}'", describe(current())));
  }
  return make(ExpressionKind::tuple, std::move(items));
}

ExpressionPointer ExpressionParser::parse_postfix(ExpressionPointer node) {
  while (true) {
    if (at_operator(".") || at_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (at_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPointer ExpressionParser::parse_subscript(ExpressionPointer node) {
  if (at_operator("[")) return parse_brackets(std::move(node));
  expect_operator(".");
  if (at(TokenKind::name)) {
    ExpressionPointer attribute = make_over(ExpressionKind::attribute, std::move(node));
    attribute->name = take().text;
    return attribute;
  }
  if (!at(TokenKind::integer)) fail_here("expected name or number");
  ExpressionPointer index = parse_number();
  return make_over(ExpressionKind::item, std::move(node), std::move(index));
}

ExpressionPointer ExpressionParser::parse_brackets(ExpressionPointer node) {
  expect_operator("[");
  std::vector<ExpressionPointer> parts;
  bool is_slice = false;
  const auto at_part_end = [&] { return at_operator("]") || at_operator(",") || at_operator(":"); };
  const auto parse_part = [&] { parts.push_back(at_part_end() ? make(ExpressionKind::constant) : parse_expression()); };
  if (at_operator("]")) fail_here("expected an expression, got ']'");
  parse_part();
  while (parts.size() < 3 && skip_operator(":")) {
    is_slice = true;
    parse_part();
  }
  if (!is_slice && at_operator(",")) {
    while (skip_operator(",")) parts.push_back(parse_expression());
    ExpressionPointer key = make(ExpressionKind::tuple, std::move(parts));
    expect_operator("]");
    return make_over(ExpressionKind::item, std::move(node), std::move(key));
  }
  expect_operator("]");
  if (!is_slice) return make_over(ExpressionKind::item, std::move(node), std::move(parts.front()));
  while (parts.size() < 3) parts.push_back(make(ExpressionKind::constant));
  parts.insert(parts.begin(), std::move(node));
  return make(ExpressionKind::slice, std::move(parts));
}

ExpressionPointer ExpressionParser::parse_filters(ExpressionPointer node, bool start_inline) {
  while (true) {
    if (start_inline || at_operator("|")) {
      if (!start_inline) take();
      start_inline = false;
      std::string name = expect_name();
      while (skip_operator(".")) name += "." + expect_name();
      ExpressionPointer filter =
          node ? make_over(ExpressionKind::filter, std::move(node)) : make(ExpressionKind::filter);
      filter->name = std::move(name);
      if (at_operator("(")) filter->arguments = parse_call_arguments();
      node = std::move(filter);
    } else if (at_name("is") && node) {
      node = parse_test(std::move(node));
    } else if (at_operator("(") && node) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPointer ExpressionParser::parse_test(ExpressionPointer node) {
  take();
  const bool negated = skip_name("not");
  ExpressionPointer test = make_over(ExpressionKind::test, std::move(node));
  test->name = expect_name();
  while (skip_operator(".")) test->name += "." + expect_name();
  const bool at_argument = at(TokenKind::name) || at(TokenKind::string) || at(TokenKind::integer) ||
                           at(TokenKind::floating) || at_operator("[") || at_operator("{");
  if (at_operator("(")) {
    test->arguments = parse_call_arguments();
  } else if (at_argument && !at_name("else") && !at_name("or") && !at_name("and")) {
    if (at_name("is")) fail_here("you cannot chain multiple tests with is");
    if (at_name("if") || at_name("not") || at_name("in")) {
      // Jinja2 takes these words for an argument and fails on them; they end the test instead.
    } else {
      test->arguments.positional.push_back(parse_postfix(parse_primary()));
      add_depth(*test, test->arguments.positional.back().get());
    }
  }
  return negated ? make_over(ExpressionKind::logical_not, std::move(test)) : std::move(test);
}

ExpressionPointer ExpressionParser::parse_call(ExpressionPointer node) {
  ExpressionPointer call = make_over(ExpressionKind::call, std::move(node));
  call->arguments = parse_call_arguments();
  return call;
}

CallArguments ExpressionParser::parse_call_arguments() {
  CallArguments arguments;
  expect_operator("(");
  bool first = true;
  while (!at_operator(")")) {
    if (!first) expect_operator(",");
    first = false;
    if (at_operator(")")) break;
    if (skip_operator("**")) {
      if (arguments.double_star) fail_here("invalid syntax for function call expression");
      arguments.double_star = parse_expression();
    } else if (skip_operator("*")) {
      if (arguments.star || arguments.double_star) fail_here("invalid syntax for function call expression");
      arguments.star = parse_expression();
    } else if (at(TokenKind::name) && ahead().kind == TokenKind::op && ahead().text == "=") {
      if (arguments.double_star) fail_here("invalid syntax for function call expression");
      std::string name = take().text;
      take();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (arguments.star || arguments.double_star || !arguments.named.empty()) {
        fail_here("invalid syntax for function call expression");
      }
      arguments.positional.push_back(parse_expression());
    }
  }
  expect_operator(")");
  return arguments;
}

}  // namespace tensorfold::text::jinja
