// Walks a syntax tree and writes what it renders.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/objects.h"
#include "text/jinja/syntax_tree.h"

namespace tensorfold::text::jinja {

/// Variables of one region of the template; look-ups go on in the parent.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent);
  [[nodiscard]] const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
  /// Whether this scope itself, not a parent, has the variable.
  [[nodiscard]] bool has(std::string_view name) const;

 private:
  friend class Evaluator;
  std::vector<std::pair<std::string, Value>> variables_;
  std::shared_ptr<Scope> parent_;
  int depth_ = 0;
  bool kept_ = false;
  MemoryCharge charge_{sizeof(Scope)};
};

/// raise_exception's message: the template refuses the request.
class TemplateRefusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Evaluator {
 public:
  /// `variables` are the names that the template sees; `now` is the clock of strftime_now.
  Evaluator(const Dict& variables, std::function<std::tm()> now, const RenderLimits& limits);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  MarkedText run(const Body& body);

  Value evaluate(const Expression& expression);
  Value call(const Value& callee, const Arguments& arguments);
  Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments);
  bool apply_test(std::string_view name, const Value& input, const Arguments& arguments);
  /// The body as text, in a scope of its own.
  MarkedText capture(const Body& body, const std::shared_ptr<Scope>& scope);
  /// A macro's body as text; `scope` holds the arguments that were given.
  MarkedText run_macro(const Statement& macro, const std::shared_ptr<Scope>& scope);
  MarkedText run_recursive_loop(const Statement& loop, const Value& items, int depth0,
                                const std::shared_ptr<Scope>& scope);
  /// Keeps an object until the rendering ends and releases its contents then.
  void keep(const std::shared_ptr<Object>& object) { kept_objects_.push_back(object); }
  [[nodiscard]] std::tm now() const { return now_(); }
  [[nodiscard]] std::size_t line() const { return line_; }

 private:
  enum class Flow { next, break_loop, continue_loop };

  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  Flow execute_condition(const Statement& statement);
  Flow execute_loop(const Statement& loop);
  Flow iterate_loop(const Statement& loop, std::vector<Value> items, int depth0);
  Flow execute_scoped(const Body& body, std::shared_ptr<Scope> scope);
  void execute_output(const Statement& statement);
  void execute_set_block(const Statement& statement);
  void execute_macro(const Statement& statement);
  void execute_call_block(const Statement& statement);
  Flow execute_with(const Statement& statement);
  Flow execute_autoescape(const Statement& statement);
  std::vector<Value> loop_items(const Statement& loop, const Value& iterable);
  void assign(const Target& target, Value value);
  [[nodiscard]] std::shared_ptr<Scope> make_scope() const;
  /// Keeps the current scope for a closure until the rendering ends.
  std::shared_ptr<Scope> keep_scope();

  Value look_up(const std::string& name);
  Value evaluate_operator(const Expression& expression);
  Value evaluate_container(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value evaluate_conditional(const Expression& expression);
  Value evaluate_comparison(const Expression& expression);
  bool compare(Comparison comparison, const Value& left, const Value& right);
  Value evaluate_concatenation(const Expression& expression);
  Value filter_text(const Expression& filter, MarkedText text);
  Arguments evaluate_arguments(const CallArguments& written);

  const Dict& variables_;
  std::function<std::tm()> now_;
  RenderLimits limits_;
  std::shared_ptr<Scope> scope_;
  TextBuilder* out_ = nullptr;
  std::size_t line_ = 1;
  int nesting_ = 0;
  int loop_depth_ = 0;
  bool autoescape_ = false;
  std::vector<std::shared_ptr<Object>> kept_objects_;
  std::vector<std::shared_ptr<Scope>> kept_scopes_;
};

/// A global function of templates (range, namespace, ...), or nullptr.
const Value* find_global(std::string_view name);

}  // namespace tensorfold::text::jinja
