#include "text/jinja/methods.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "text/jinja/operators.h"

namespace tensorfold::text::jinja {

namespace {

constexpr std::array<std::string_view, 5> dict_methods = {"get", "items", "keys", "values", "copy"};
constexpr std::array<std::string_view, 3> list_methods = {"count", "index", "copy"};
constexpr std::array<std::string_view, 2> tuple_methods = {"count", "index"};
constexpr std::array<std::string_view, 5> unsafe_dict_methods = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 8> unsafe_list_methods = {"append", "reverse", "insert", "sort",
                                                                 "extend", "remove",  "clear",  "pop"};

template <std::size_t size>
bool is_one_of(const std::array<std::string_view, size>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class BoundMethod : public Object {
 public:
  BoundMethod(Value receiver, std::string name)
      : Object(receiver.depth() + 1), receiver_(std::move(receiver)), name_(std::move(name)) {}
  [[nodiscard]] std::string type_name() const override { return "builtin_function_or_method"; }
  [[nodiscard]] std::string representation() const override {
    return fmt::format("<built-in method {} of {} object>", name_, jinja::type_name(receiver_));
  }
  [[nodiscard]] bool callable() const override { return true; }
  Value call(Evaluator& /*evaluator*/, const Arguments& arguments) override {
    return call_method(receiver_, name_, arguments);
  }

 private:
  Value receiver_;
  std::string name_;
};

Value call_dict_method(const Value& value, std::string_view name, const Arguments& arguments) {
  const Dict& dict = value.dict();
  if (name == "get") {
    const auto bound = arguments.bind("get", {"key", "default"});
    if (bound[0] == nullptr) throw TemplateFailure("get expected at least 1 argument, got 0");
    if (const Value* found = dict.find(*bound[0])) return *found;
    return bound[1] != nullptr ? *bound[1] : Value();
  }
  static_cast<void>(arguments.bind(name, {}));
  if (name == "copy") return value;
  std::vector<Value> items;
  items.reserve(dict.size());
  if (name == "keys") {
    for (const auto& entry : dict.entries()) items.push_back(entry.first);
    return Value::sequence(SequenceKind::dict_keys, std::move(items));
  }
  if (name == "values") {
    for (const auto& entry : dict.entries()) items.push_back(entry.second);
    return Value::sequence(SequenceKind::dict_values, std::move(items));
  }
  for (const auto& [key, item] : dict.entries()) items.push_back(Value::tuple({key, item}));
  return Value::sequence(SequenceKind::dict_items, std::move(items));
}

Value call_sequence_method(const Value& value, std::string_view name, const Arguments& arguments) {
  if (name == "copy") {
    static_cast<void>(arguments.bind(name, {}));
    return value;
  }
  const auto bound = arguments.bind(name, {"value"});
  if (bound[0] == nullptr) throw TemplateFailure(fmt::format("{}() takes exactly one argument (0 given)", name));
  const auto& items = value.sequence().items;
  Int count = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!equal(items[i], *bound[0])) continue;
    if (name == "index") return Value(i);
    ++count;
  }
  if (name == "index") {
    throw TemplateFailure(fmt::format("{} is not in {}", representation(*bound[0]).view(), type_name(value)));
  }
  return count;
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  if (value.is_string()) return is_string_method(name);
  if (value.is_dict()) return is_one_of(dict_methods, name);
  if (value.is_list()) return is_one_of(list_methods, name);
  return value.is_sequence(SequenceKind::tuple) && is_one_of(tuple_methods, name);
}

bool is_unsafe_method(const Value& value, std::string_view name) {
  return (value.is_dict() && is_one_of(unsafe_dict_methods, name)) ||
         (value.is_list() && is_one_of(unsafe_list_methods, name));
}

Value bound_method(const Value& value, std::string_view name) {
  return Value(std::static_pointer_cast<Object>(std::make_shared<BoundMethod>(value, std::string(name))));
}

Value call_method(const Value& value, std::string_view name, const Arguments& arguments) {
  if (value.is_string()) return call_string_method(value.text(), name, arguments);
  if (value.is_dict()) return call_dict_method(value, name, arguments);
  return call_sequence_method(value, name, arguments);
}

}  // namespace tensorfold::text::jinja
