// Objects of the template language: functions, namespaces, macros, loops, cyclers and joiners.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "text/jinja/syntax_tree.h"
#include "text/jinja/value.h"

namespace tensorfold::text::jinja {

class Scope;

/// A function written in C++.
class NativeFunction : public Object {
 public:
  using Function = std::function<Value(Evaluator&, const Arguments&)>;
  NativeFunction(std::string name, Function function, std::size_t contents_depth = 0)
      : Object(contents_depth), name_(std::move(name)), function_(std::move(function)) {}
  [[nodiscard]] std::string type_name() const override { return "function"; }
  [[nodiscard]] std::string representation() const override { return "<function " + name_ + ">"; }
  [[nodiscard]] bool callable() const override { return true; }
  Value call(Evaluator& evaluator, const Arguments& arguments) override { return function_(evaluator, arguments); }

 private:
  std::string name_;
  Function function_;
};

/// namespace(...): the one value that a template can change. The evaluator empties it when the rendering ends.
class Namespace : public Object {
 public:
  [[nodiscard]] std::string type_name() const override { return "Namespace"; }
  [[nodiscard]] Value attribute(std::string_view name) const override;
  void set(const MarkedText& name, Value value) { attributes_.set(Value(name), std::move(value)); }
  void release_contents() override { attributes_ = Dict(); }

 private:
  Dict attributes_;
};

/// A macro, or the caller of a call block.
class Macro : public Object {
 public:
  Macro(const Statement& statement, std::string name, std::shared_ptr<Scope> closure)
      : statement_(statement), name_(std::move(name)), closure_(std::move(closure)) {}
  [[nodiscard]] std::string type_name() const override { return "Macro"; }
  [[nodiscard]] std::string representation() const override { return "<Macro '" + name_ + "'>"; }
  [[nodiscard]] Value attribute(std::string_view name) const override;
  [[nodiscard]] bool callable() const override { return true; }
  Value call(Evaluator& evaluator, const Arguments& arguments) override;

 private:
  void bind_parameters(const Arguments& arguments, Scope& scope) const;
  void bind_rest(const Arguments& arguments, Scope& scope) const;
  const Statement& statement_;
  std::string name_;
  std::shared_ptr<Scope> closure_;
};

/// What `loop` is inside a loop.
class LoopContext : public Object {
 public:
  LoopContext(const Statement& statement, std::vector<Value> items, int depth0, std::shared_ptr<Scope> scope);
  [[nodiscard]] std::string type_name() const override { return "LoopContext"; }
  [[nodiscard]] Value attribute(std::string_view name) const override;
  [[nodiscard]] bool callable() const override { return statement_.recursive; }
  /// A recursive loop over other items, as text.
  Value call(Evaluator& evaluator, const Arguments& arguments) override;
  void release_contents() override { last_checked_.clear(); }

  [[nodiscard]] const std::vector<Value>& items() const { return items_; }
  void move_to(std::size_t index) { index_ = index; }
  /// Whether the values differ from those of the last call.
  bool changed(std::vector<Value> values);
  [[nodiscard]] Value cycle(const std::vector<Value>& values) const;

 private:
  [[nodiscard]] Value method(std::string_view name) const;
  const Statement& statement_;
  std::vector<Value> items_;
  std::size_t index_ = 0;
  int depth0_;
  std::shared_ptr<Scope> scope_;
  bool has_checked_ = false;
  std::vector<Value> last_checked_;
};

/// cycler(...): its values in turn.
class Cycler : public Object {
 public:
  explicit Cycler(std::vector<Value> values);
  [[nodiscard]] std::string type_name() const override { return "Cycler"; }
  [[nodiscard]] Value attribute(std::string_view name) const override;
  Value next();
  void reset() { index_ = 0; }

 private:
  std::vector<Value> values_;
  std::size_t index_ = 0;
};

/// joiner(separator): nothing at the first call, the separator afterwards.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : Object(separator.depth() + 1), separator_(std::move(separator)) {}
  [[nodiscard]] std::string type_name() const override { return "Joiner"; }
  [[nodiscard]] bool callable() const override { return true; }
  Value call(Evaluator& evaluator, const Arguments& arguments) override;

 private:
  Value separator_;
  bool used_ = false;
};

template <typename T, typename... Args>
Value make_object(Args&&... args) {
  return Value(std::static_pointer_cast<Object>(std::make_shared<T>(std::forward<Args>(args)...)));
}

inline Value make_function(std::string name, NativeFunction::Function function, std::size_t contents_depth = 0) {
  return make_object<NativeFunction>(std::move(name), std::move(function), contents_depth);
}

}  // namespace tensorfold::text::jinja
