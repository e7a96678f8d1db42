#include "text/jinja/objects.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/evaluator.h"

namespace tensorfold::text::jinja {

namespace {

std::size_t deepest(const std::vector<Value>& values) {
  std::size_t depth = 0;
  for (const Value& value : values) depth = std::max(depth, value.depth());
  return depth + 1;
}

}  // namespace

Value Namespace::attribute(std::string_view name) const {
  if (const Value* found = attributes_.find(name)) return *found;
  return Object::attribute(name);
}

Value Macro::attribute(std::string_view name) const {
  if (name == "name") return name_;
  return Object::attribute(name);
}

Value Macro::call(Evaluator& evaluator, const Arguments& arguments) {
  const auto scope = std::make_shared<Scope>(closure_);
  bind_rest(arguments, *scope);
  bind_parameters(arguments, *scope);
  return evaluator.run_macro(statement_, scope);
}

void Macro::bind_parameters(const Arguments& arguments, Scope& scope) const {
  for (std::size_t i = 0; i < statement_.parameters.size(); ++i) {
    const Parameter& parameter = statement_.parameters[i];
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& argument) { return argument.first == parameter.name; });
    if (i < arguments.positional.size()) {
      if (named != arguments.named.end()) {
        throw TemplateFailure(fmt::format("macro '{}' got '{}' twice", name_, parameter.name));
      }
      scope.set(parameter.name, arguments.positional[i]);
    } else if (named != arguments.named.end()) {
      scope.set(parameter.name, named->second);
    } else if (!parameter.standard) {
      scope.set(parameter.name, Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
    }
  }
}

void Macro::bind_rest(const Arguments& arguments, Scope& scope) const {
  const std::size_t count = statement_.parameters.size();
  if (statement_.uses_varargs) {
    const auto rest =
        arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, arguments.positional.size()));
    scope.set("varargs", Value::tuple(std::vector<Value>(rest, arguments.positional.end())));
  } else if (arguments.positional.size() > count) {
    throw TemplateFailure(fmt::format("macro '{}' takes not more than {} argument(s)", name_, count));
  }
  std::vector<std::pair<Value, Value>> rest;
  if (statement_.uses_caller) scope.set("caller", Value::undefined("No caller defined"));
  for (const auto& argument : arguments.named) {
    const auto& name = argument.first;
    const auto& value = argument.second;
    const bool known = std::any_of(statement_.parameters.begin(), statement_.parameters.end(),
                                   [&](const Parameter& parameter) { return parameter.name == name; });
    if (known) continue;
    if (name == "caller" && statement_.uses_caller) {
      scope.set("caller", value);
    } else if (statement_.uses_kwargs) {
      rest.emplace_back(Value(name), value);
    } else {
      throw TemplateFailure(fmt::format("macro '{}' takes no keyword argument '{}'", name_, name));
    }
  }
  if (statement_.uses_kwargs) scope.set("kwargs", Value::dict(std::move(rest)));
}

LoopContext::LoopContext(const Statement& statement, std::vector<Value> items, int depth0, std::shared_ptr<Scope> scope)
    : Object(deepest(items)),
      statement_(statement),
      items_(std::move(items)),
      depth0_(depth0),
      scope_(std::move(scope)) {}

Value LoopContext::attribute(std::string_view name) const {
  if (name == "index") return index_ + 1;
  if (name == "index0") return index_;
  if (name == "first") return index_ == 0;
  if (name == "last") return index_ + 1 == items_.size();
  if (name == "length") return items_.size();
  if (name == "revindex") return items_.size() - index_;
  if (name == "revindex0") return items_.size() - index_ - 1;
  if (name == "depth") return depth0_ + 1;
  if (name == "depth0") return depth0_;
  if (name == "previtem") return index_ > 0 ? items_[index_ - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") {
    return index_ + 1 < items_.size() ? items_[index_ + 1] : Value::undefined("there is no next item");
  }
  if (name == "cycle" || name == "changed") return method(name);
  return Object::attribute(name);
}

Value LoopContext::method(std::string_view name) const {
  // The method keeps the loop alive; the loop does not keep its methods, so there is no cycle.
  const auto self = std::static_pointer_cast<LoopContext>(std::const_pointer_cast<Object>(shared_from_this()));
  if (name == "cycle") {
    const auto cycle = [self](Evaluator&, const Arguments& arguments) { return self->cycle(arguments.positional); };
    return make_function("cycle", cycle, depth() + 1);
  }
  const auto changed = [self](Evaluator& evaluator, const Arguments& arguments) {
    if (!self->has_checked_) evaluator.keep(self);
    return Value(self->changed(arguments.positional));
  };
  return make_function("changed", changed, depth() + 1);
}

Value LoopContext::cycle(const std::vector<Value>& values) const {
  if (values.empty()) throw TemplateFailure("no items for cycling given");
  return values[index_ % values.size()];
}

bool LoopContext::changed(std::vector<Value> values) {
  const bool same = has_checked_ && equal(Value::tuple(values), Value::tuple(last_checked_));
  has_checked_ = true;
  if (!same) last_checked_ = std::move(values);
  return !same;
}

Value LoopContext::call(Evaluator& evaluator, const Arguments& arguments) {
  if (!statement_.recursive) {
    throw TemplateFailure("The loop must have the 'recursive' marker to be called recursively.");
  }
  const auto bound = arguments.bind("loop", {"iterable"});
  if (bound[0] == nullptr) throw TemplateFailure("loop() needs something to iterate over");
  return evaluator.run_recursive_loop(statement_, *bound[0], depth0_ + 1, scope_);
}

Cycler::Cycler(std::vector<Value> values) : Object(deepest(values)), values_(std::move(values)) {
  if (values_.empty()) throw TemplateFailure("at least one item has to be provided");
}

Value Cycler::attribute(std::string_view name) const {
  if (name == "current") return values_[index_];
  if (name != "next" && name != "reset") return Object::attribute(name);
  const auto self = std::static_pointer_cast<Cycler>(std::const_pointer_cast<Object>(shared_from_this()));
  const bool resets = name == "reset";
  const auto function = [self, resets](Evaluator&, const Arguments&) {
    if (!resets) return self->next();
    self->reset();
    return Value();
  };
  return make_function(std::string(name), function, depth() + 1);
}

Value Cycler::next() {
  Value value = values_[index_];
  index_ = (index_ + 1) % values_.size();
  return value;
}

Value Joiner::call(Evaluator& /*evaluator*/, const Arguments& /*arguments*/) {
  if (used_) return separator_;
  used_ = true;
  return MarkedText();
}

}  // namespace tensorfold::text::jinja
