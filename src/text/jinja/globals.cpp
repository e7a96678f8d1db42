// The functions that every template sees (evaluator.h).
#include <array>
#include <map>

#include <fmt/format.h>

#include "text/jinja/evaluator.h"

namespace tensorfold::text::jinja {

namespace {

constexpr Int longest_range = 100'000;

Value make_range(Evaluator& /*evaluator*/, const Arguments& arguments) {
  if (!arguments.named.empty()) throw TemplateFailure("range() takes no keyword arguments");
  const auto& values = arguments.positional;
  if (values.empty() || values.size() > 3) throw TemplateFailure("range expected 1 to 3 arguments");
  for (const Value& value : values) {
    require_defined(value);
    if (!value.is_integral()) {
      throw TemplateFailure(fmt::format("'{}' object cannot be interpreted as an integer", type_name(value)));
    }
  }
  const Int start = values.size() > 1 ? values[0].integer() : 0;
  const Int stop = values.size() > 1 ? values[1].integer() : values[0].integer();
  const Int step = values.size() > 2 ? values[2].integer() : 1;
  if (step == 0) throw TemplateFailure("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (Int at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<Int>(items.size()) >= longest_range) {
      throw TemplateFailure("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
    }
    items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return Value::sequence(SequenceKind::range, std::move(items));
}

/// The entries of dict(mapping or pairs, name=value, ...).
std::vector<std::pair<Value, Value>> dict_entries(const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1) throw TemplateFailure("dict expected at most 1 argument");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional.front();
    if (source.is_dict()) {
      entries = source.dict().entries();
    } else {
      for (const Value& pair : iterate(source)) {
        const std::vector<Value> parts = iterate(pair);
        if (parts.size() != 2) throw TemplateFailure("dictionary update sequence element must have length 2");
        entries.emplace_back(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) entries.emplace_back(Value(name), value);
  return entries;
}

Value make_dict(Evaluator& /*evaluator*/, const Arguments& arguments) { return Value::dict(dict_entries(arguments)); }

Value make_namespace(Evaluator& evaluator, const Arguments& arguments) {
  const auto space = std::make_shared<Namespace>();
  evaluator.keep(space);
  for (auto& [name, value] : dict_entries(arguments)) {
    if (!name.is_string()) throw TemplateFailure("attribute names must be strings");
    space->set(name.text(), std::move(value));
  }
  return Value(std::static_pointer_cast<Object>(space));
}

Value raise_exception(Evaluator& /*evaluator*/, const Arguments& arguments) {
  const auto bound = arguments.bind("raise_exception", {"message"});
  const std::string message = bound[0] == nullptr ? std::string() : to_text(*bound[0]).str();
  throw TemplateRefusal(message.empty() ? "the chat template refuses these messages and does not say why" : message);
}

Value format_time(Evaluator& evaluator, const Arguments& arguments) {
  const auto bound = arguments.bind("strftime_now", {"format"});
  if (bound[0] == nullptr || !bound[0]->is_string()) throw TemplateFailure("strftime_now needs a format");
  const std::string format = bound[0]->text().str();
  if (format.empty()) return MarkedText();
  if (format.size() > 1000) throw TemplateFailure("the format of strftime_now is too long");
  const std::tm now = evaluator.now();
  // A blank at the end tells an empty result from a buffer that is too small.
  std::vector<char> buffer(64 * 1024);
  const std::size_t size = std::strftime(buffer.data(), buffer.size(), (format + " ").c_str(), &now);
  if (size == 0) throw TemplateFailure("the format of strftime_now is too long");
  return MarkedText(std::string(buffer.data(), size - 1));
}

Value make_cycler(Evaluator& /*evaluator*/, const Arguments& arguments) {
  return make_object<Cycler>(arguments.positional);
}

Value make_joiner(Evaluator& /*evaluator*/, const Arguments& arguments) {
  const auto bound = arguments.bind("joiner", {"sep"});
  return make_object<Joiner>(bound[0] == nullptr ? Value(", ") : *bound[0]);
}

Value lorem(Evaluator& /*evaluator*/, const Arguments& /*arguments*/) {
  throw TemplateFailure("lipsum makes random text, which a prompt cannot have");
}

std::map<std::string_view, Value> make_globals() {
  const Unmetered for_the_whole_process;
  return {
      {"range", make_function("range", make_range)},
      {"dict", make_function("dict", make_dict)},
      {"namespace", make_function("namespace", make_namespace)},
      {"raise_exception", make_function("raise_exception", raise_exception)},
      {"strftime_now", make_function("strftime_now", format_time)},
      {"cycler", make_function("cycler", make_cycler)},
      {"joiner", make_function("joiner", make_joiner)},
      {"lipsum", make_function("lipsum", lorem)},
      {"self", Value::dict({})},
  };
}

}  // namespace

const Value* find_global(std::string_view name) {
  static const std::map<std::string_view, Value> globals = make_globals();
  const auto found = globals.find(name);
  return found == globals.end() ? nullptr : &found->second;
}

}  // namespace tensorfold::text::jinja
