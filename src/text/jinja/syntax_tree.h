// The parsed form of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/operators.h"
#include "text/jinja/value.h"

namespace tensorfold::text::jinja {

enum class ExpressionKind {
  constant,     ///< value
  name,         ///< name
  list,         ///< operands
  tuple,        ///< operands
  dict,         ///< operands: key, value, key, value, ...
  attribute,    ///< operands[0].name
  item,         ///< operands[0][operands[1]]
  slice,        ///< operands[0][operands[1]:operands[2]:operands[3]]; absent parts are None constants
  call,         ///< operands[0](call)
  filter,       ///< operands[0] | name(call); no operands in a filter block
  test,         ///< operands[0] is name(call)
  conditional,  ///< operands: value, condition, and the else value if there is one
  negate,
  plus,
  logical_not,
  logical_and,
  logical_or,
  binary,       ///< operation
  concatenate,  ///< operands joined as text
  compare,      ///< operands[0] comparisons[0] operands[1] comparisons[1] ...
};

enum class Comparison { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

/// The arguments written in a call, a filter or a test.
struct CallArguments {
  std::vector<ExpressionPointer> positional;
  std::vector<std::pair<std::string, ExpressionPointer>> named;
  ExpressionPointer star;         ///< *arguments
  ExpressionPointer double_star;  ///< **arguments
};

struct Expression {
  ExpressionKind kind = ExpressionKind::constant;
  std::size_t line = 1;
  std::string name;
  Value value;
  BinaryOperator operation = BinaryOperator::add;
  std::vector<Comparison> comparisons;
  std::vector<ExpressionPointer> operands;
  CallArguments arguments;
  int depth = 1;  ///< how deeply expressions nest in this one
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

/// What `set`, `for` and `with` bind: a name, an attribute of a namespace, or several of them.
struct Target {
  std::string name;
  std::string attribute;        ///< not empty: name.attribute
  std::vector<Target> targets;  ///< not empty: unpacking
};

enum class StatementKind {
  text,          ///< text
  output,        ///< expression
  condition,     ///< branches: expression and body; else_body
  loop,          ///< for target in expression if filter: body; else_body
  set,           ///< target = expression
  set_block,     ///< target = body, through expression (a filter) if there is one
  macro,         ///< name(parameters): body
  call_block,    ///< expression is a call that gets body as its caller
  filter_block,  ///< body through expression
  with,          ///< targets = values around body
  scope,         ///< body in a scope of its own (block, generation)
  autoescape,    ///< body with escaping as expression says
  break_loop,
  continue_loop,
  unavailable,  ///< include, import, extends: there is nothing to load from
};

struct Parameter {
  std::string name;
  ExpressionPointer standard;  ///< the default, if there is one
};

struct Branch {
  ExpressionPointer condition;
  Body body;
};

struct Statement {
  StatementKind kind = StatementKind::text;
  std::size_t line = 1;
  Value text;
  std::string name;
  Target target;
  ExpressionPointer expression;
  ExpressionPointer filter;
  bool recursive = false;
  Body body;
  Body else_body;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<std::pair<Target, ExpressionPointer>> bindings;
  bool uses_varargs = false;  ///< macro: the body mentions varargs
  bool uses_kwargs = false;   ///< macro: the body mentions kwargs
  bool uses_caller = false;   ///< macro: the body mentions caller
};

}  // namespace tensorfold::text::jinja
