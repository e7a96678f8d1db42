// The expressions of the template grammar (parser.cpp holds the statements).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/syntax_tree.h"

namespace tensorfold::text::jinja {

/// Nesting that a source may have; evaluation and destruction recurse over it.
constexpr int max_syntax_depth = 250;

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  [[nodiscard]] bool at(TokenKind kind) const { return current().kind == kind; }
  [[nodiscard]] bool at_name(std::string_view name) const { return at(TokenKind::name) && current().text == name; }
  [[nodiscard]] bool at_operator(std::string_view text) const { return at(TokenKind::op) && current().text == text; }
  Token take();
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view text);
  std::string expect_name();
  void expect_operator(std::string_view text);
  void expect(TokenKind kind, std::string_view description);
  [[noreturn]] void fail_here(std::string_view message) const;

  /// An expression; `with_condition` says whether `a if b else c` may stand here.
  ExpressionPointer parse_expression(bool with_condition = true);
  /// An expression, or a tuple of several. `end_name` is a name that ends the tuple.
  ExpressionPointer parse_tuple(bool with_condition = true, std::string_view end_name = {}, bool parenthesised = false);
  /// `| name(...)` filters after `node`; a filter block starts without the bar and has no node.
  ExpressionPointer parse_filters(ExpressionPointer node, bool start_inline = false);
  CallArguments parse_call_arguments();
  [[nodiscard]] ExpressionPointer make(ExpressionKind kind) const;
  /// `kind` over `operands`; checks the nesting.
  ExpressionPointer make(ExpressionKind kind, std::vector<ExpressionPointer> operands) const;
  template <typename... Operands>
  ExpressionPointer make_over(ExpressionKind kind, Operands... operands) const {
    std::vector<ExpressionPointer> list;
    (list.push_back(std::move(operands)), ...);
    return make(kind, std::move(list));
  }

  /// Names mentioned so far, for macros that look at varargs, kwargs or caller.
  std::vector<std::string> mentioned_names_;
  int nesting_ = 0;

 private:
  void add_depth(Expression& node, const Expression* operand) const;
  ExpressionPointer parse_conditional();
  ExpressionPointer parse_or();
  ExpressionPointer parse_and();
  ExpressionPointer parse_not();
  ExpressionPointer parse_comparison();
  bool take_comparison(Comparison& comparison);
  ExpressionPointer parse_sum();
  ExpressionPointer parse_concatenation();
  ExpressionPointer parse_product();
  ExpressionPointer parse_power();
  ExpressionPointer parse_unary(bool with_filters = true);
  ExpressionPointer parse_primary();
  ExpressionPointer parse_name();
  ExpressionPointer parse_number();
  ExpressionPointer parse_list();
  ExpressionPointer parse_dict();
  ExpressionPointer parse_postfix(ExpressionPointer node);
  ExpressionPointer parse_subscript(ExpressionPointer node);
  ExpressionPointer parse_brackets(ExpressionPointer node);
  ExpressionPointer parse_test(ExpressionPointer node);
  ExpressionPointer parse_call(ExpressionPointer node);
  [[nodiscard]] bool at_tuple_end(std::string_view end_name) const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace tensorfold::text::jinja
