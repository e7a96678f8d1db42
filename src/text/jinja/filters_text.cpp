// Filters that make text (filters.h).
#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/filters.h"
#include "text/jinja/format_text.h"
#include "text/jinja/json_value.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace tensorfold::text::jinja {

namespace {

Int integer_or(const Value* value, Int standard) {
  if (value == nullptr || value->is_none()) return standard;
  require_defined(*value);
  if (!value->is_integral()) throw TemplateFailure(fmt::format("an integer is needed, not {}", type_name(*value)));
  return value->integer();
}

bool truth_or(const Value* value, bool standard) { return value == nullptr ? standard : truthy(*value); }

MarkedText text_or(const Value* value, std::string_view standard) {
  return value == nullptr ? MarkedText(std::string(standard)) : to_text(*value);
}

Value to_json(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = truth_or(bound[0], false);
  style.sort_keys = truth_or(bound[3], false);
  if (bound[1] != nullptr && bound[1]->is_string()) {
    style.indent = bound[1]->text().str();
  } else if (bound[1] != nullptr && !bound[1]->is_none()) {
    style.indent = pad(MarkedText(), integer_or(bound[1], 0), " ", '<').str();
  }
  if (style.indent) style.item_separator = ",";
  if (bound[2] != nullptr && !bound[2]->is_none()) {
    const std::vector<Value> separators = iterate(*bound[2]);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      throw TemplateFailure("separators must be two strings");
    }
    style.item_separator = separators[0].text().str();
    style.key_separator = separators[1].text().str();
  }
  return dump_json(input, style);
}

/// Jinja's title: a capital behind white space, hyphens and opening brackets only.
MarkedText title(const MarkedText& text) {
  TextBuilder out;
  bool at_start = true;
  for (std::size_t at = 0; at < text.size();) {
    const bool untrusted = text.untrusted_at(at);
    const char32_t code_point = next_code_point(text.view(), at);
    const bool divides =
        is_space(code_point) ||
        (code_point < 0x80 && std::string_view("-({[<").find(static_cast<char>(code_point)) != std::string_view::npos);
    append_mapped(out, code_point, at_start ? CaseMapping::upper : CaseMapping::lower, untrusted);
    at_start = divides;
  }
  return out.finish(text.is_markup());
}

Value indent(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("indent", {"width", "first", "blank"});
  require_defined(input);
  if (!input.is_string()) throw TemplateFailure(fmt::format("indent needs text, not {}", type_name(input)));
  const bool is_text = bound[0] != nullptr && bound[0]->is_string();
  const MarkedText indention = is_text ? bound[0]->text() : pad(MarkedText(), integer_or(bound[0], 4), " ", '<');
  const bool blank = truth_or(bound[2], false);
  TextBuilder ended;
  ended.append(to_text(input));
  ended.append("\n");
  const std::vector<Value> lines = split_lines(ended.finish());
  TextBuilder out;
  if (truth_or(bound[1], false)) out.append(indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n");
    if (i > 0 && (blank || !lines[i].text().empty())) out.append(indention);
    out.append(lines[i].text());
  }
  return out.finish();
}

Value join(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("join", {"d", "attribute"});
  const MarkedText separator = text_or(bound[0], "");
  const bool by_attribute = bound[1] != nullptr && !bound[1]->is_none();
  TextBuilder out;
  bool first = true;
  for (const Value& item : iterate(input)) {
    if (!first) out.append(separator);
    first = false;
    out.append(to_text(by_attribute ? get_path(item, *bound[1]) : item));
  }
  return out.finish();
}

Value replace_filter(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("replace", {"old", "new", "count"});
  if (bound[0] == nullptr || bound[1] == nullptr) throw TemplateFailure("replace needs two texts");
  return replace(to_text(input), to_text(*bound[0]), to_text(*bound[1]), integer_or(bound[2], -1));
}

Value trim(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("trim", {"chars"});
  const bool given = bound[0] != nullptr && !bound[0]->is_none();
  const MarkedText characters = given ? to_text(*bound[0]) : MarkedText();
  return strip(to_text(input), given ? &characters : nullptr, StripSide::both);
}

MarkedText prefix(const MarkedText& text, Int count) { return get_slice(text, Value(), Value(count), Value()).text(); }

Value truncate(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("truncate", {"length", "killwords", "end", "leeway"});
  const Int length = integer_or(bound[0], 255);
  const Int leeway = integer_or(bound[3], 5);
  if (static_cast<Int>(jinja::length(input)) <= length + leeway) return input;
  if (!input.is_string()) throw TemplateFailure(fmt::format("truncate needs text, not {}", type_name(input)));
  const MarkedText& text = input.text();
  const MarkedText end = text_or(bound[2], "...");
  MarkedText kept = prefix(text, std::max<Int>(0, length - static_cast<Int>(end.length())));
  if (!truth_or(bound[1], false)) {
    const std::size_t blank = kept.view().rfind(' ');
    if (blank != std::string_view::npos) kept = kept.slice(0, blank);
  }
  TextBuilder out;
  out.append(kept);
  out.append(end);
  return out.finish();
}

/// Lines of at most `width` code points, broken at blanks; longer words are cut.
void wrap_line(TextBuilder& out, const MarkedText& line, Int width, const MarkedText& ending) {
  Int used = 0;
  for (const Value& word_value : split(line, nullptr, -1)) {
    MarkedText word = word_value.text();
    if (used > 0 && used + 1 + static_cast<Int>(word.length()) > width) {
      out.append(ending);
      used = 0;
    } else if (used > 0) {
      out.append(" ");
      ++used;
    }
    while (static_cast<Int>(word.length()) > width) {
      const MarkedText head = prefix(word, width);
      out.append(head);
      out.append(ending);
      word = word.slice(head.size(), word.size());
    }
    out.append(word);
    used += static_cast<Int>(word.length());
  }
}

Value word_wrap(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("wordwrap", {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  require_defined(input);
  if (!input.is_string()) throw TemplateFailure(fmt::format("wordwrap needs text, not {}", type_name(input)));
  const Int width = std::max<Int>(1, integer_or(bound[0], 79));
  const MarkedText ending = bound[2] == nullptr || bound[2]->is_none() ? MarkedText("\n") : to_text(*bound[2]);
  TextBuilder out;
  bool first = true;
  for (const Value& line : split_lines(to_text(input))) {
    if (!first) out.append(ending);
    first = false;
    wrap_line(out, line.text(), width, ending);
  }
  return out.finish();
}

Value word_count(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  static_cast<void>(arguments.bind("wordcount", {}));
  const MarkedText text = to_text(input);
  Int words = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t code_point = next_code_point(text.view(), at);
    const bool letter = code_point == '_' || is_in_class(code_point, CharacterClass::alphanumeric);
    words += Int{letter && !inside};
    inside = letter;
  }
  return words;
}

MarkedText strip_tags(const MarkedText& text) {
  std::string plain;
  const std::string bytes = text.str();
  for (std::size_t at = 0; at < bytes.size();) {
    const bool comment = bytes.compare(at, 4, "<!--") == 0;
    const std::size_t end = comment            ? bytes.find("-->", at)
                            : bytes[at] == '<' ? bytes.find('>', at)
                                               : std::string::npos;
    if (end == std::string::npos) {
      plain += bytes[at++];
    } else {
      at = end + (comment ? 3 : 1);
    }
  }
  MarkedText result(std::move(plain), !text.untrusted().empty());
  static const std::pair<std::string_view, std::string_view> entities[] = {
      {"&lt;", "<"}, {"&gt;", ">"}, {"&#34;", "\""}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}};
  for (const auto& [entity, character] : entities) {
    result = replace(result, MarkedText(std::string(entity)), MarkedText(std::string(character)), -1);
  }
  TextBuilder out;
  for (const Value& word : split(result, nullptr, -1)) {
    if (out.size() > 0) out.append(" ");
    out.append(word.text());
  }
  return out.finish();
}

void append_url_quoted(TextBuilder& out, const MarkedText& text, bool is_query) {
  constexpr std::string_view safe = "_.-~";
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char byte = text.view()[at];
    const bool untrusted = text.untrusted_at(at);
    if (std::isalnum(static_cast<unsigned char>(byte)) != 0 || safe.find(byte) != std::string_view::npos ||
        (byte == '/' && !is_query)) {
      out.append(text, at, at + 1);
    } else if (byte == ' ' && is_query) {
      out.append("+", untrusted);
    } else {
      out.append(fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(byte))), untrusted);
    }
  }
}

Value url_encode(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  static_cast<void>(arguments.bind("urlencode", {}));
  TextBuilder out;
  if (!input.is_dict() && !input.is_sequence()) {
    append_url_quoted(out, to_text(input), false);
    return out.finish();
  }
  const std::vector<Value> pairs = input.is_dict() ? iterate(call_method(input, "items", {})) : iterate(input);
  for (const Value& pair : pairs) {
    const std::vector<Value> parts = iterate(pair);
    if (parts.size() != 2) throw TemplateFailure("urlencode needs pairs");
    if (out.size() > 0) out.append("&");
    append_url_quoted(out, to_text(parts[0]), true);
    out.append("=");
    append_url_quoted(out, to_text(parts[1]), true);
  }
  return out.finish();
}

Value xml_attributes(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("xmlattr", {"autospace"});
  if (!input.is_dict()) throw TemplateFailure("xmlattr needs a mapping");
  TextBuilder out;
  for (const auto& [key, value] : input.dict().entries()) {
    if (value.is_none() || value.is_undefined()) continue;
    if (out.size() > 0 || truth_or(bound[0], true)) out.append(" ");
    out.append(escape_value(key));
    out.append("=\"");
    out.append(escape_value(value));
    out.append("\"");
  }
  return out.finish();
}

Value file_size(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  const auto bound = arguments.bind("filesizeformat", {"binary"});
  const bool binary = truth_or(bound[0], false);
  require_defined(input);
  if (!input.is_number()) throw TemplateFailure(fmt::format("a number is needed, not {}", type_name(input)));
  const double bytes = input.number();
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return "1 Byte";
  if (bytes < base) return fmt::format("{} Bytes", static_cast<long long>(bytes));
  double unit = base;
  for (const std::string_view prefix_letter : {"k", "M", "G", "T", "P", "E", "Z", "Y"}) {
    unit *= base;
    if (bytes < unit || prefix_letter == "Y") {
      const std::string letter = binary && prefix_letter == "k" ? "K" : std::string(prefix_letter);
      return fmt::format("{:.1f} {}{}", base * bytes / unit, letter, binary ? "iB" : "B");
    }
  }
  return {};
}

Value format_filter(Evaluator& /*evaluator*/, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    throw TemplateFailure("can't handle positional and keyword arguments at the same time");
  }
  if (arguments.named.empty()) return percent_format(to_text(input), Value::tuple(arguments.positional));
  std::vector<std::pair<Value, Value>> named;
  for (const auto& [name, value] : arguments.named) named.emplace_back(Value(name), value);
  return percent_format(to_text(input), Value::dict(std::move(named)));
}

/// A filter without arguments that maps text to a value.
template <typename Function>
Filter on_text(std::string_view name, Function function) {
  return [name, function](Evaluator&, const Value& input, const Arguments& arguments) -> Value {
    static_cast<void>(arguments.bind(name, {}));
    return function(to_text(input));
  };
}

}  // namespace

void add_text_filters(FilterTable& table) {
  table["upper"] = on_text("upper", [](const MarkedText& text) { return map_case(text, CaseMapping::upper); });
  table["lower"] = on_text("lower", [](const MarkedText& text) { return map_case(text, CaseMapping::lower); });
  table["capitalize"] = on_text("capitalize", capitalize);
  table["title"] = on_text("title", title);
  table["string"] = on_text("string", [](const MarkedText& text) { return text; });
  table["safe"] = on_text("safe", [](const MarkedText& text) { return text.with_markup(true); });
  table["striptags"] = on_text("striptags", strip_tags);
  table["forceescape"] = on_text("forceescape", escape_html);
  table["escape"] =
      table["e"] = [](Evaluator&, const Value& input, const Arguments&) -> Value { return escape_value(input); };
  table["pprint"] = [](Evaluator&, const Value& input, const Arguments&) -> Value { return representation(input); };
  table["center"] = [](Evaluator&, const Value& input, const Arguments& arguments) -> Value {
    return pad(to_text(input), integer_or(arguments.bind("center", {"width"})[0], 80), " ", '^');
  };
  table["tojson"] = to_json;
  table["indent"] = indent;
  table["join"] = join;
  table["replace"] = replace_filter;
  table["trim"] = trim;
  table["truncate"] = truncate;
  table["wordwrap"] = word_wrap;
  table["wordcount"] = word_count;
  table["urlencode"] = url_encode;
  table["xmlattr"] = xml_attributes;
  table["filesizeformat"] = file_size;
  table["format"] = format_filter;
}

}  // namespace tensorfold::text::jinja
