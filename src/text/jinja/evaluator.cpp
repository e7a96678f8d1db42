#include "text/jinja/evaluator.h"

#include <algorithm>

#include <fmt/format.h>

namespace tensorfold::text::jinja {

namespace {

constexpr int deepest_scope = 500;

/// Puts a value in place for as long as this lives.
template <typename T>
class Restored {
 public:
  Restored(T& place, T value) : place_(place), previous_(std::exchange(place, std::move(value))) {}
  ~Restored() { place_ = std::move(previous_); }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  T& place_;
  T previous_;
};

}  // namespace

Scope::Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)), depth_(parent_ ? parent_->depth_ + 1 : 0) {
  if (depth_ > deepest_scope) throw TemplateFailure("the template nests too deeply");
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get()) {
    for (const auto& [candidate, value] : scope->variables_) {
      if (candidate == name) return &value;
    }
  }
  return nullptr;
}

bool Scope::has(std::string_view name) const {
  return std::any_of(variables_.begin(), variables_.end(),
                     [&](const auto& variable) { return variable.first == name; });
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [candidate, old] : variables_) {
    if (candidate == name) {
      old = std::move(value);
      return;
    }
  }
  variables_.emplace_back(std::string(name), std::move(value));
}

Evaluator::Evaluator(const Dict& variables, std::function<std::tm()> now, const RenderLimits& limits)
    : variables_(variables), now_(std::move(now)), limits_(limits), scope_(std::make_shared<Scope>(nullptr)) {}

Evaluator::~Evaluator() {
  // Closures, namespaces and loops may refer to each other in cycles and in long chains: everything kept is alive until
  // each has dropped its references, so nothing is destroyed recursively.
  for (const auto& object : kept_objects_) object->release_contents();
  for (const auto& scope : kept_scopes_) {
    scope->variables_.clear();
    scope->parent_.reset();
  }
}

MarkedText Evaluator::run(const Body& body) {
  TextBuilder out;
  const Restored<TextBuilder*> output(out_, &out);
  execute(body);
  return out.finish();
}

std::shared_ptr<Scope> Evaluator::make_scope() const { return std::make_shared<Scope>(scope_); }

std::shared_ptr<Scope> Evaluator::keep_scope() {
  // The whole chain: a kept scope must not destroy its parents recursively either.
  for (auto scope = scope_; scope && !scope->kept_; scope = scope->parent_) {
    scope->kept_ = true;
    kept_scopes_.push_back(scope);
  }
  return scope_;
}

MarkedText Evaluator::capture(const Body& body, const std::shared_ptr<Scope>& scope) {
  TextBuilder out;
  const Restored<TextBuilder*> output(out_, &out);
  execute_scoped(body, scope);
  return out.finish();
}

MarkedText Evaluator::run_macro(const Statement& macro, const std::shared_ptr<Scope>& scope) {
  const Restored<std::shared_ptr<Scope>> inside(scope_, scope);
  for (const Parameter& parameter : macro.parameters) {
    if (parameter.standard && !scope->has(parameter.name)) scope->set(parameter.name, evaluate(*parameter.standard));
  }
  return capture(macro.body, scope).with_markup(autoescape_);
}

Evaluator::Flow Evaluator::execute_scoped(const Body& body, std::shared_ptr<Scope> scope) {
  const Restored<std::shared_ptr<Scope>> inside(scope_, std::move(scope));
  return execute(body);
}

Evaluator::Flow Evaluator::execute(const Body& body) {
  for (const auto& statement : body) {
    if (const Flow flow = execute(*statement); flow != Flow::next) return flow;
  }
  return Flow::next;
}

Evaluator::Flow Evaluator::execute(const Statement& statement) {
  const NestingGuard guard(nesting_, limits_.nesting);
  if (RenderMeter* meter = RenderMeter::current()) meter->step();
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::text:
      out_->append(statement.text.text());
      return Flow::next;
    case StatementKind::output:
      execute_output(statement);
      return Flow::next;
    case StatementKind::condition:
      return execute_condition(statement);
    case StatementKind::loop:
      return execute_loop(statement);
    case StatementKind::set:
      assign(statement.target, evaluate(*statement.expression));
      return Flow::next;
    case StatementKind::set_block:
      execute_set_block(statement);
      return Flow::next;
    case StatementKind::macro:
      execute_macro(statement);
      return Flow::next;
    case StatementKind::call_block:
      execute_call_block(statement);
      return Flow::next;
    case StatementKind::filter_block:
      out_->append(to_text(filter_text(*statement.expression, capture(statement.body, make_scope()))));
      return Flow::next;
    case StatementKind::with:
      return execute_with(statement);
    case StatementKind::scope:
      return execute_scoped(statement.body, make_scope());
    case StatementKind::autoescape:
      return execute_autoescape(statement);
    case StatementKind::break_loop:
      return Flow::break_loop;
    case StatementKind::continue_loop:
      return Flow::continue_loop;
    case StatementKind::unavailable:
      throw TemplateFailure("no loader for this environment specified");
  }
  return Flow::next;
}

void Evaluator::execute_output(const Statement& statement) {
  const Value value = evaluate(*statement.expression);
  out_->append(autoescape_ ? escape_value(value) : to_text(value));
}

Evaluator::Flow Evaluator::execute_condition(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (truthy(evaluate(*branch.condition))) return execute(branch.body);
  }
  return execute(statement.else_body);
}

std::vector<Value> Evaluator::loop_items(const Statement& loop, const Value& iterable) {
  std::vector<Value> items = jinja::iterate(iterable);
  if (!loop.filter) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    const Restored<std::shared_ptr<Scope>> inside(scope_, make_scope());
    assign(loop.target, item);
    if (truthy(evaluate(*loop.filter))) kept.push_back(std::move(item));
  }
  return kept;
}

Evaluator::Flow Evaluator::execute_loop(const Statement& loop) {
  return iterate_loop(loop, loop_items(loop, evaluate(*loop.expression)), loop_depth_);
}

Evaluator::Flow Evaluator::iterate_loop(const Statement& loop, std::vector<Value> items, int depth0) {
  if (items.empty()) return execute_scoped(loop.else_body, make_scope());
  const Restored<int> depth(loop_depth_, loop.recursive ? depth0 + 1 : 0);
  const auto context =
      std::make_shared<LoopContext>(loop, std::move(items), depth0, loop.recursive ? keep_scope() : nullptr);
  const std::size_t count = context->items().size();
  bool completed = false;  // Jinja2 renders the else branch unless an iteration reached the end of the body
  for (std::size_t i = 0; i < count; ++i) {
    context->move_to(i);
    const auto scope = make_scope();
    scope->set("loop", Value(std::static_pointer_cast<Object>(context)));
    const Restored<std::shared_ptr<Scope>> inside(scope_, scope);
    assign(loop.target, context->items()[i]);
    const Flow flow = execute(loop.body);
    if (flow == Flow::break_loop) break;
    completed = completed || flow == Flow::next;
  }
  return completed ? Flow::next : execute_scoped(loop.else_body, make_scope());
}

MarkedText Evaluator::run_recursive_loop(const Statement& loop, const Value& items, int depth0,
                                         const std::shared_ptr<Scope>& scope) {
  TextBuilder out;
  const Restored<TextBuilder*> output(out_, &out);
  const Restored<std::shared_ptr<Scope>> inside(scope_, scope);
  iterate_loop(loop, loop_items(loop, items), depth0);
  return out.finish(autoescape_);
}

void Evaluator::execute_set_block(const Statement& statement) {
  MarkedText text = capture(statement.body, make_scope()).with_markup(autoescape_);
  assign(statement.target, statement.expression ? filter_text(*statement.expression, std::move(text)) : Value(text));
}

void Evaluator::execute_macro(const Statement& statement) {
  scope_->set(statement.name, make_object<Macro>(statement, statement.name, keep_scope()));
}

void Evaluator::execute_call_block(const Statement& statement) {
  const Expression& call_expression = *statement.expression;
  const Value callee = evaluate(*call_expression.operands[0]);
  Arguments arguments = evaluate_arguments(call_expression.arguments);
  arguments.named.emplace_back("caller", make_object<Macro>(statement, "caller", keep_scope()));
  out_->append(to_text(call(callee, arguments)));
}

Evaluator::Flow Evaluator::execute_with(const Statement& statement) {
  const auto scope = make_scope();
  std::vector<Value> values;
  for (const auto& [target, expression] : statement.bindings) values.push_back(evaluate(*expression));
  const Restored<std::shared_ptr<Scope>> inside(scope_, scope);
  for (std::size_t i = 0; i < values.size(); ++i) assign(statement.bindings[i].first, values[i]);
  return execute(statement.body);
}

Evaluator::Flow Evaluator::execute_autoescape(const Statement& statement) {
  const Restored<bool> escape(autoescape_, truthy(evaluate(*statement.expression)));
  return execute_scoped(statement.body, make_scope());
}

void Evaluator::assign(const Target& target, Value value) {
  if (!target.targets.empty()) {
    std::vector<Value> items = jinja::iterate(value);
    if (items.size() != target.targets.size()) {
      throw TemplateFailure(fmt::format("{} values to unpack (expected {}, got {})",
                                        items.size() < target.targets.size() ? "not enough" : "too many",
                                        target.targets.size(), items.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.targets[i], std::move(items[i]));
  } else if (target.attribute.empty()) {
    scope_->set(target.name, std::move(value));
  } else {
    auto* space = look_up(target.name).as<Namespace>();
    if (space == nullptr) throw TemplateFailure("cannot assign attribute on non-namespace object");
    space->set(MarkedText(target.attribute), std::move(value));
  }
}

Value Evaluator::look_up(const std::string& name) {
  if (const Value* found = scope_->find(name)) return *found;
  if (const Value* found = variables_.find(std::string_view(name))) return *found;
  if (const Value* found = find_global(name)) return *found;
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

}  // namespace tensorfold::text::jinja
