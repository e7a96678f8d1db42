#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>

#include "text/jinja/expression_parser.h"

namespace tensorfold::text::jinja {

namespace {

using StatementPointer = std::unique_ptr<Statement>;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body parse_template() { return parse_until({}); }

 private:
  [[nodiscard]] StatementPointer make_statement(StatementKind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = current().line;
    return statement;
  }

  /// Statements up to a tag named in `ends`, which stays current; to the end of the template if `ends` is empty.
  Body parse_until(std::initializer_list<std::string_view> ends) {
    if (nesting_ >= max_syntax_depth) fail_here("the template nests too deeply");
    ++nesting_;
    Body body;
    while (!at(TokenKind::end)) {
      if (at(TokenKind::data)) {
        body.push_back(make_statement(StatementKind::text));
        body.back()->text = Value(take().text);
      } else if (at(TokenKind::variable_begin)) {
        take();
        body.push_back(make_statement(StatementKind::output));
        body.back()->expression = parse_tuple();
        expect(TokenKind::variable_end, "end of print statement");
      } else {
        take();
        if (at(TokenKind::name) && std::find(ends.begin(), ends.end(), current().text) != ends.end()) {
          --nesting_;
          return body;
        }
        body.push_back(parse_statement());
        expect(TokenKind::block_end, "end of statement block");
      }
    }
    if (ends.size() != 0) fail_here(fmt::format("unexpected end of template; '{}' is missing", *(ends.end() - 1)));
    --nesting_;
    return body;
  }

  /// The body of a tag, up to its end tag.
  Body parse_body(std::string_view end) {
    finish_opening_tag();
    Body body = parse_until({end});
    take();
    return body;
  }

  void finish_opening_tag() {
    skip_operator(":");
    expect(TokenKind::block_end, "end of statement block");
  }

  StatementPointer parse_statement() {
    if (!at(TokenKind::name)) fail_here("tag name expected");
    const std::string tag = current().text;
    if (tag == "for") return parse_for();
    if (tag == "if") return parse_if();
    if (tag == "set") return parse_set();
    if (tag == "macro") return parse_macro();
    if (tag == "call") return parse_call_block();
    if (tag == "filter") return parse_filter_block();
    if (tag == "with") return parse_with();
    if (tag == "block" || tag == "generation") return parse_scope(tag);
    if (tag == "autoescape") return parse_autoescape();
    if (tag == "print") return parse_print();
    if (tag == "break" || tag == "continue") return parse_jump(tag);
    if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") return parse_unavailable();
    fail_here(fmt::format("encountered unknown tag '{}'", tag));
  }

  StatementPointer parse_for() {
    StatementPointer loop = make_statement(StatementKind::loop);
    take();
    loop->target = parse_targets("in");
    if (!skip_name("in")) fail_here(fmt::format("expected 'in', got '{}'", describe(current())));
    loop->expression = parse_tuple(false, "recursive");
    if (skip_name("if")) loop->filter = parse_expression();
    loop->recursive = skip_name("recursive");
    finish_opening_tag();
    ++loops_;
    loop->body = parse_until({"else", "endfor"});
    --loops_;
    if (take().text == "else") loop->else_body = parse_body("endfor");
    return loop;
  }

  StatementPointer parse_if() {
    StatementPointer statement = make_statement(StatementKind::condition);
    for (std::string tag = take().text; tag != "endif"; tag = take().text) {
      if (tag == "else") {
        statement->else_body = parse_body("endif");
        break;
      }
      Branch branch;
      branch.condition = parse_tuple(false);
      finish_opening_tag();
      branch.body = parse_until({"elif", "else", "endif"});
      statement->branches.push_back(std::move(branch));
    }
    return statement;
  }

  StatementPointer parse_set() {
    StatementPointer statement = make_statement(StatementKind::set);
    take();
    if (at(TokenKind::name) && ahead().kind == TokenKind::op && ahead().text == ".") {
      statement->target.name = take().text;
      take();
      statement->target.attribute = expect_name();
    } else {
      statement->target = parse_targets({});
    }
    if (skip_operator("=")) {
      statement->expression = parse_tuple();
      return statement;
    }
    statement->kind = StatementKind::set_block;
    if (at_operator("|")) statement->expression = parse_filters(nullptr);
    while (at_operator("|")) statement->expression = parse_filters(std::move(statement->expression));
    statement->body = parse_body("endset");
    return statement;
  }

  /// One name, several with commas between them, or such groups in brackets.
  Target parse_targets(std::string_view end_name) {
    std::vector<Target> targets;
    bool is_tuple = false;
    while (true) {
      if (is_tuple && (at(TokenKind::block_end) || at_operator(")") || at_operator("=") ||
                       (!end_name.empty() && at_name(end_name)))) {
        break;
      }
      targets.push_back(parse_one_target());
      if (!skip_operator(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) return std::move(targets.front());
    Target target;
    target.targets = std::move(targets);
    return target;
  }

  Target parse_one_target() {
    if (nesting_ >= max_syntax_depth) fail_here("the template nests too deeply");
    if (skip_operator("(")) {
      ++nesting_;
      Target target = parse_targets({});
      --nesting_;
      expect_operator(")");
      return target;
    }
    static const std::initializer_list<std::string_view> constants = {"true", "false", "none", "True", "False", "None"};
    if (at(TokenKind::name) && std::find(constants.begin(), constants.end(), current().text) != constants.end()) {
      fail_here(fmt::format("can't assign to '{}'", current().text));
    }
    Target target;
    target.name = expect_name();
    return target;
  }

  std::vector<Parameter> parse_parameters() {
    std::vector<Parameter> parameters;
    expect_operator("(");
    while (!at_operator(")")) {
      if (!parameters.empty()) expect_operator(",");
      if (at_operator(")")) break;
      Parameter parameter;
      parameter.name = expect_name();
      if (skip_operator("=")) {
        parameter.standard = parse_expression();
      } else if (!parameters.empty() && parameters.back().standard) {
        fail_here("non-default argument follows default argument");
      }
      parameters.push_back(std::move(parameter));
    }
    expect_operator(")");
    return parameters;
  }

  /// A body with parameters, and which of the special names it mentions.
  void parse_macro_body(Statement& statement, std::string_view end) {
    const std::size_t before = mentioned_names_.size();
    const int loops = std::exchange(loops_, 0);
    statement.body = parse_body(end);
    loops_ = loops;
    const auto mentions = [&](std::string_view name) {
      return std::find(mentioned_names_.begin() + static_cast<std::ptrdiff_t>(before), mentioned_names_.end(), name) !=
             mentioned_names_.end();
    };
    statement.uses_varargs = mentions("varargs");
    statement.uses_kwargs = mentions("kwargs");
    statement.uses_caller = mentions("caller");
  }

  StatementPointer parse_macro() {
    StatementPointer macro = make_statement(StatementKind::macro);
    take();
    macro->name = expect_name();
    macro->parameters = parse_parameters();
    parse_macro_body(*macro, "endmacro");
    return macro;
  }

  StatementPointer parse_call_block() {
    StatementPointer block = make_statement(StatementKind::call_block);
    take();
    if (at_operator("(")) block->parameters = parse_parameters();
    block->expression = parse_expression();
    if (block->expression->kind != ExpressionKind::call) fail_here("expected call");
    parse_macro_body(*block, "endcall");
    return block;
  }

  StatementPointer parse_filter_block() {
    StatementPointer block = make_statement(StatementKind::filter_block);
    take();
    block->expression = parse_filters(nullptr, true);
    block->body = parse_body("endfilter");
    return block;
  }

  StatementPointer parse_with() {
    StatementPointer with = make_statement(StatementKind::with);
    take();
    while (!at(TokenKind::block_end)) {
      if (!with->bindings.empty()) expect_operator(",");
      Target target = parse_one_target();
      expect_operator("=");
      with->bindings.emplace_back(std::move(target), parse_expression());
    }
    with->body = parse_body("endwith");
    return with;
  }

  StatementPointer parse_scope(const std::string& tag) {
    StatementPointer scope = make_statement(StatementKind::scope);
    take();
    if (tag == "block") {
      expect_name();
      skip_name("scoped");
      skip_name("required");
    }
    finish_opening_tag();
    const std::string end = "end" + tag;
    scope->body = parse_until({end});
    take();
    if (tag == "block" && at(TokenKind::name)) take();
    return scope;
  }

  StatementPointer parse_autoescape() {
    StatementPointer statement = make_statement(StatementKind::autoescape);
    take();
    statement->expression = parse_expression();
    statement->body = parse_body("endautoescape");
    return statement;
  }

  StatementPointer parse_print() {
    StatementPointer statement = make_statement(StatementKind::output);
    take();
    statement->expression = parse_tuple();
    return statement;
  }

  StatementPointer parse_jump(const std::string& tag) {
    if (loops_ == 0) fail_here(fmt::format("'{}' outside of a loop", tag));
    take();
    return make_statement(tag == "break" ? StatementKind::break_loop : StatementKind::continue_loop);
  }

  StatementPointer parse_unavailable() {
    StatementPointer statement = make_statement(StatementKind::unavailable);
    while (!at(TokenKind::block_end) && !at(TokenKind::end)) take();
    return statement;
  }

  int loops_ = 0;
};

}  // namespace

Body parse(std::string_view source) { return Parser(tokenize(source)).parse_template(); }

}  // namespace tensorfold::text::jinja
