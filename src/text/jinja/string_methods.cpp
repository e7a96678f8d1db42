// Python's str methods (methods.h).
#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "base/utf8.h"
#include "text/jinja/format_text.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace tensorfold::text::jinja {

namespace {

using Method = std::function<Value(const MarkedText&, const Arguments&)>;

const MarkedText& text_argument(const Value* value, std::string_view function) {
  if (value == nullptr) throw TemplateFailure(fmt::format("{}() misses an argument", function));
  require_defined(*value);
  if (!value->is_string()) {
    throw TemplateFailure(fmt::format("{}() argument must be str, not {}", function, type_name(*value)));
  }
  return value->text();
}

Int integer_argument(const Value* value, Int standard, std::string_view function) {
  if (value == nullptr) return standard;
  require_defined(*value);
  if (!value->is_integral()) {
    throw TemplateFailure(fmt::format("{}() argument must be int, not {}", function, type_name(*value)));
  }
  return value->integer();
}

/// Byte offset of a code point index, clamped as slices are.
std::size_t byte_offset(const MarkedText& text, const Value* index, bool is_end) {
  const auto length = static_cast<Int>(text.length());
  Int position = is_end ? length : 0;
  if (index != nullptr && !index->is_none()) position = integer_argument(index, 0, "index");
  if (position < 0) position = std::max<Int>(0, position + length);
  position = std::min(position, length);
  std::size_t at = 0;
  for (Int i = 0; i < position; ++i) at = code_point_end(text.view(), at);
  return at;
}

std::size_t code_point_index(const MarkedText& text, std::size_t byte) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < byte; at = code_point_end(text.view(), at)) ++count;
  return count;
}

Value find_method(std::string_view name, const MarkedText& text, const Arguments& arguments) {
  const auto bound = arguments.bind(name, {"sub", "start", "end"});
  const MarkedText& part = text_argument(bound[0], name);
  const std::size_t begin = byte_offset(text, bound[1], false);
  const std::size_t end = std::max(begin, byte_offset(text, bound[2], true));
  const std::string_view range = text.view().substr(begin, end - begin);
  const bool from_right = name[0] == 'r';
  const std::size_t found = from_right ? range.rfind(part.view()) : range.find(part.view());
  if (found != std::string_view::npos) return code_point_index(text, begin + found);
  if (name.ends_with("index")) throw TemplateFailure("substring not found");
  return -1;
}

Value count_method(const MarkedText& text, const Arguments& arguments) {
  const auto bound = arguments.bind("count", {"sub", "start", "end"});
  const std::string_view part = text_argument(bound[0], "count").view();
  const std::size_t begin = byte_offset(text, bound[1], false);
  const std::size_t end = std::max(begin, byte_offset(text, bound[2], true));
  const std::string_view range = text.view().substr(begin, end - begin);
  if (part.empty()) return text.slice(begin, end).length() + 1;
  std::size_t count = 0;
  for (std::size_t at = range.find(part); at != std::string_view::npos; at = range.find(part, at + part.size()))
    ++count;
  return count;
}

Value affix_method(const MarkedText& text, const Arguments& arguments, bool at_start) {
  const std::string_view name = at_start ? "startswith" : "endswith";
  const auto bound = arguments.bind(name, {"prefix", "start", "end"});
  const std::size_t begin = byte_offset(text, bound[1], false);
  const std::size_t end = std::max(begin, byte_offset(text, bound[2], true));
  const std::string_view range = text.view().substr(begin, end - begin);
  const auto matches = [&](const Value* value) {
    const std::string_view part = text_argument(value, name).view();
    return at_start ? range.starts_with(part) : range.ends_with(part);
  };
  if (bound[0] != nullptr && bound[0]->is_sequence(SequenceKind::tuple)) {
    const auto& parts = bound[0]->sequence().items;
    return std::any_of(parts.begin(), parts.end(), [&](const Value& part) { return matches(&part); });
  }
  return matches(bound[0]);
}

Value strip_method(std::string_view name, const MarkedText& text, const Arguments& arguments) {
  const auto bound = arguments.bind(name, {"chars"});
  const bool given = bound[0] != nullptr && !bound[0]->is_none();
  const StripSide side = name == "strip" ? StripSide::both : name == "lstrip" ? StripSide::left : StripSide::right;
  return strip(text, given ? &text_argument(bound[0], name) : nullptr, side);
}

/// The last `limit` splits only.
std::vector<Value> split_from_right(const MarkedText& text, const MarkedText* separator, Int limit) {
  std::vector<Value> pieces = split(text, separator, -1);
  if (limit < 0 || static_cast<Int>(pieces.size()) <= limit + 1) return pieces;
  if (separator == nullptr) {
    // Everything before the kept pieces is one piece, with its inner white space.
    std::size_t end = strip(text, nullptr, StripSide::right).size();
    for (Int i = 0; i < limit; ++i) {
      end -= pieces[pieces.size() - 1 - static_cast<std::size_t>(i)].text().size();
      end = strip(text.slice(0, end), nullptr, StripSide::right).size();
    }
    std::vector<Value> result = {Value(strip(text.slice(0, end), nullptr, StripSide::left))};
    result.insert(result.end(), pieces.end() - static_cast<std::ptrdiff_t>(limit), pieces.end());
    return result;
  }
  std::size_t end = text.size();
  for (Int i = 0; i < limit; ++i) {
    end -= pieces[pieces.size() - 1 - static_cast<std::size_t>(i)].text().size() + separator->size();
  }
  std::vector<Value> result = {Value(text.slice(0, end))};
  result.insert(result.end(), pieces.end() - static_cast<std::ptrdiff_t>(limit), pieces.end());
  return result;
}

Value split_method(std::string_view name, const MarkedText& text, const Arguments& arguments) {
  const auto bound = arguments.bind(name, {"sep", "maxsplit"});
  const bool given = bound[0] != nullptr && !bound[0]->is_none();
  const MarkedText* separator = given ? &text_argument(bound[0], name) : nullptr;
  if (separator != nullptr && separator->empty()) throw TemplateFailure("empty separator");
  const Int limit = integer_argument(bound[1], -1, name);
  return Value::list(name == "split" ? split(text, separator, limit) : split_from_right(text, separator, limit));
}

Value join_method(const MarkedText& text, const Arguments& arguments) {
  const auto bound = arguments.bind("join", {"iterable"});
  if (bound[0] == nullptr) throw TemplateFailure("join() takes exactly one argument (0 given)");
  TextBuilder out;
  bool first = true;
  for (const Value& item : iterate(*bound[0])) {
    if (!item.is_string()) {
      throw TemplateFailure(fmt::format("sequence item: expected str instance, {} found", type_name(item)));
    }
    if (!first) out.append(text);
    first = false;
    out.append(item.text());
  }
  return out.finish();
}

Value partition_method(std::string_view name, const MarkedText& text, const Arguments& arguments) {
  const auto bound = arguments.bind(name, {"sep"});
  const MarkedText& separator = text_argument(bound[0], name);
  if (separator.empty()) throw TemplateFailure("empty separator");
  const bool from_right = name[0] == 'r';
  const std::size_t found = from_right ? text.view().rfind(separator.view()) : text.view().find(separator.view());
  if (found == std::string_view::npos) {
    if (from_right) return Value::tuple({MarkedText(), MarkedText(), text});
    return Value::tuple({text, MarkedText(), MarkedText()});
  }
  const std::size_t after = found + separator.size();
  return Value::tuple({text.slice(0, found), text.slice(found, after), text.slice(after, text.size())});
}

MarkedText title_case(const MarkedText& text, bool swap) {
  TextBuilder out;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const bool untrusted = text.untrusted_at(at);
    const char32_t code_point = next_code_point(text.view(), at);
    CaseMapping mapping = inside ? CaseMapping::lower : CaseMapping::title;
    if (swap) {
      mapping = is_in_class(code_point, CharacterClass::lower) ? CaseMapping::upper : CaseMapping::lower;
    }
    append_mapped(out, code_point, mapping, untrusted);
    inside = is_cased(code_point);
  }
  return out.finish();
}

Value class_method(const MarkedText& text, CharacterClass character_class) {
  if (text.empty()) return false;
  for (std::size_t at = 0; at < text.size();) {
    if (!is_in_class(next_code_point(text.view(), at), character_class)) return false;
  }
  return true;
}

Value case_method(const MarkedText& text, CharacterClass wanted, CharacterClass refused) {
  bool found = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t code_point = next_code_point(text.view(), at);
    if (is_in_class(code_point, refused)) return false;
    found = found || is_in_class(code_point, wanted);
  }
  return found;
}

Value every_code_point(const MarkedText& text, bool when_empty, bool (*holds)(char32_t)) {
  for (std::size_t at = 0; at < text.size();) {
    if (!holds(next_code_point(text.view(), at))) return false;
  }
  return !text.empty() || when_empty;
}

Value title_test(const MarkedText& text) {
  return !text.empty() && title_case(text, false).view() == text.view() &&
         map_case(text, CaseMapping::lower).view() != map_case(text, CaseMapping::upper).view();
}

Value pad_method(const MarkedText& text, std::string_view name, const Arguments& arguments) {
  const auto bound = arguments.bind(name, {"width", "fillchar"});
  const std::string fill = bound[1] == nullptr ? " " : text_argument(bound[1], name).str();
  return pad(text, integer_argument(bound[0], 0, name), fill, name == "ljust" ? '<' : name == "rjust" ? '>' : '^');
}

Value zero_fill(const MarkedText& text, const Arguments& arguments) {
  const auto bound = arguments.bind("zfill", {"width"});
  const Int width = integer_argument(bound[0], 0, "zfill");
  const std::size_t sign = text.view().starts_with("-") || text.view().starts_with("+") ? 1 : 0;
  TextBuilder out;
  out.append(text, 0, sign);
  out.append(pad(text.slice(sign, text.size()), width - static_cast<Int>(sign), "0", '>'));
  return out.finish();
}

Value expand_tabs(const MarkedText& text, const Arguments& arguments) {
  const auto bound = arguments.bind("expandtabs", {"tabsize"});
  const Int size = integer_argument(bound[0], 8, "expandtabs");
  TextBuilder out;
  Int column = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t code_point = next_code_point(text.view(), at);
    if (code_point != '\t') {
      out.append(text, begin, at);
      column = code_point == '\n' || code_point == '\r' ? 0 : column + 1;
      continue;
    }
    const Int blanks = size > 0 ? size - column % size : 0;
    out.append(pad(MarkedText(), blanks, " ", '<'));
    column += blanks;
  }
  return out.finish();
}

Value remove_affix(const MarkedText& text, const Arguments& arguments, bool at_start) {
  const std::string_view name = at_start ? "removeprefix" : "removesuffix";
  const MarkedText& part = text_argument(arguments.bind(name, {"part"})[0], name);
  if (at_start && text.view().starts_with(part.view())) return text.slice(part.size(), text.size());
  if (!at_start && text.view().ends_with(part.view())) return text.slice(0, text.size() - part.size());
  return text;
}

Value replace_method(const MarkedText& text, const Arguments& arguments) {
  const auto bound = arguments.bind("replace", {"old", "new", "count"});
  return replace(text, text_argument(bound[0], "replace"), text_argument(bound[1], "replace"),
                 integer_argument(bound[2], -1, "replace"));
}

bool is_identifier(const MarkedText& text) {
  bool first = true;
  for (std::size_t at = 0; at < text.size(); first = false) {
    const char32_t code_point = next_code_point(text.view(), at);
    const bool letter = code_point == '_' || is_in_class(code_point, CharacterClass::alphabetic);
    if (!letter && (first || !is_in_class(code_point, CharacterClass::decimal))) return false;
  }
  return !first;
}

/// A method that takes no arguments.
template <typename Function>
Method plain(std::string_view name, Function function) {
  return [name, function](const MarkedText& text, const Arguments& arguments) -> Value {
    static_cast<void>(arguments.bind(name, {}));
    return function(text);
  };
}

using MethodTable = std::map<std::string_view, Method>;

/// A method that is told its name.
template <typename Function>
void add_named(MethodTable& table, std::initializer_list<std::string_view> names, Function function) {
  for (const std::string_view name : names) {
    table[name] = [name, function](const MarkedText& text, const Arguments& arguments) -> Value {
      return function(name, text, arguments);
    };
  }
}

void add_case_methods(MethodTable& table) {
  table["upper"] = plain("upper", [](const MarkedText& text) { return map_case(text, CaseMapping::upper); });
  table["lower"] = plain("lower", [](const MarkedText& text) { return map_case(text, CaseMapping::lower); });
  table["casefold"] = plain("casefold", [](const MarkedText& text) { return map_case(text, CaseMapping::fold); });
  table["title"] = plain("title", [](const MarkedText& text) { return title_case(text, false); });
  table["swapcase"] = plain("swapcase", [](const MarkedText& text) { return title_case(text, true); });
  table["capitalize"] = plain("capitalize", [](const MarkedText& text) { return capitalize(text); });
}

void add_class_methods(MethodTable& table) {
  static const std::pair<std::string_view, CharacterClass> classes[] = {
      {"isalpha", CharacterClass::alphabetic}, {"isalnum", CharacterClass::alphanumeric},
      {"isdigit", CharacterClass::digit},      {"isdecimal", CharacterClass::decimal},
      {"isnumeric", CharacterClass::numeric},
  };
  for (const auto& [name, character_class] : classes) {
    table[name] =
        plain(name, [wanted = character_class](const MarkedText& text) { return class_method(text, wanted); });
  }
  table["isspace"] = plain("isspace", [](const MarkedText& text) { return every_code_point(text, false, is_space); });
  table["isprintable"] =
      plain("isprintable", [](const MarkedText& text) { return every_code_point(text, true, is_printable); });
  table["isascii"] = plain("isascii", [](const MarkedText& text) {
    return every_code_point(text, true, [](char32_t code_point) { return code_point < 0x80; });
  });
  table["isupper"] = plain("isupper", [](const MarkedText& text) {
    return case_method(text, CharacterClass::upper_or_title, CharacterClass::lower);
  });
  table["islower"] = plain("islower", [](const MarkedText& text) {
    return case_method(text, CharacterClass::lower, CharacterClass::upper_or_title);
  });
  table["istitle"] = plain("istitle", title_test);
  table["isidentifier"] = plain("isidentifier", is_identifier);
}

const MethodTable& methods() {
  static const MethodTable table = [] {
    MethodTable made;
    add_case_methods(made);
    add_class_methods(made);
    add_named(made, {"find", "rfind", "index", "rindex"}, find_method);
    add_named(made, {"strip", "lstrip", "rstrip"}, strip_method);
    add_named(made, {"split", "rsplit"}, split_method);
    add_named(made, {"partition", "rpartition"}, partition_method);
    for (const std::string_view name : {"ljust", "rjust", "center"}) {
      made[name] = [name](const MarkedText& text, const Arguments& arguments) {
        return pad_method(text, name, arguments);
      };
    }
    made["count"] = count_method;
    made["startswith"] = [](const auto& text, const auto& arguments) { return affix_method(text, arguments, true); };
    made["endswith"] = [](const auto& text, const auto& arguments) { return affix_method(text, arguments, false); };
    made["removeprefix"] = [](const auto& text, const auto& arguments) { return remove_affix(text, arguments, true); };
    made["removesuffix"] = [](const auto& text, const auto& arguments) { return remove_affix(text, arguments, false); };
    made["replace"] = replace_method;
    made["join"] = join_method;
    made["zfill"] = zero_fill;
    made["expandtabs"] = expand_tabs;
    made["splitlines"] = plain("splitlines", [](const MarkedText& text) { return Value::list(split_lines(text)); });
    made["format"] = [](const auto& text, const auto& arguments) -> Value { return brace_format(text, arguments); };
    return made;
  }();
  return table;
}

}  // namespace

bool is_string_method(std::string_view name) { return methods().contains(name); }

Value call_string_method(const MarkedText& text, std::string_view name, const Arguments& arguments) {
  Value result = methods().at(name)(text, arguments);
  if (text.is_markup() && result.is_string()) return result.text().with_markup(true);
  return result;
}

MarkedText strip(const MarkedText& text, const MarkedText* characters, StripSide side) {
  const auto strips = [&](char32_t code_point, std::string_view bytes) {
    return characters == nullptr ? is_space(code_point) : characters->view().find(bytes) != std::string_view::npos;
  };
  std::size_t begin = 0;
  std::size_t end = text.size();
  const std::string_view bytes = text.view();
  while (side != StripSide::right && begin < end) {
    std::size_t next = begin;
    const char32_t code_point = next_code_point(bytes, next);
    if (!strips(code_point, bytes.substr(begin, next - begin))) break;
    begin = next;
  }
  while (side != StripSide::left && end > begin) {
    std::size_t start = end - 1;
    while (start > begin && is_utf8_continuation(bytes[start])) --start;
    std::size_t next = start;
    const char32_t code_point = next_code_point(bytes, next);
    if (!strips(code_point, bytes.substr(start, end - start))) break;
    end = start;
  }
  return text.slice(begin, end);
}

std::vector<Value> split(const MarkedText& text, const MarkedText* separator, Int limit) {
  std::vector<Value> pieces;
  const std::string_view bytes = text.view();
  std::size_t begin = 0;
  if (separator != nullptr) {
    while (limit < 0 || static_cast<Int>(pieces.size()) < limit) {
      const std::size_t found = bytes.find(separator->view(), begin);
      if (found == std::string_view::npos) break;
      pieces.emplace_back(text.slice(begin, found));
      begin = found + separator->size();
    }
    pieces.emplace_back(text.slice(begin, bytes.size()));
    return pieces;
  }
  const auto skip = [&](std::size_t at, bool spaces) {
    while (at < bytes.size()) {
      std::size_t next = at;
      if (is_space(next_code_point(bytes, next)) != spaces) break;
      at = next;
    }
    return at;
  };
  for (begin = skip(0, true); begin < bytes.size(); begin = skip(begin, true)) {
    const bool last = limit >= 0 && static_cast<Int>(pieces.size()) >= limit;
    const std::size_t end = last ? bytes.size() : skip(begin, false);
    pieces.emplace_back(text.slice(begin, end));
    begin = end;
  }
  return pieces;
}

std::vector<Value> split_lines(const MarkedText& text) {
  std::vector<Value> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t code_point = next_code_point(text.view(), at);
    const bool ends = (code_point >= 0x0A && code_point <= 0x0D) || (code_point >= 0x1C && code_point <= 0x1E) ||
                      code_point == 0x85 || code_point == 0x2028 || code_point == 0x2029;
    if (!ends) continue;
    if (code_point == '\r' && at < text.size() && text.view()[at] == '\n') ++at;
    lines.emplace_back(text.slice(begin, end));
    begin = at;
  }
  if (begin < text.size()) lines.emplace_back(text.slice(begin, text.size()));
  return lines;
}

MarkedText replace(const MarkedText& text, const MarkedText& old, const MarkedText& fresh, Int limit) {
  TextBuilder out;
  const std::string_view bytes = text.view();
  std::size_t copied = 0;
  std::size_t search = 0;
  for (Int done = 0; limit < 0 || done < limit; ++done) {
    const std::size_t found = old.empty() ? search : bytes.find(old.view(), search);
    if (found == std::string_view::npos || found > bytes.size()) break;
    out.append(text, copied, found);
    out.append(fresh);
    copied = found + old.size();
    search = copied;
    if (old.empty()) {
      if (found >= bytes.size()) break;
      search = code_point_end(bytes, found);
    }
  }
  out.append(text, copied, bytes.size());
  return out.finish();
}

MarkedText pad(const MarkedText& text, Int width, std::string_view fill, char alignment) {
  const Int missing = width - static_cast<Int>(text.length());
  if (missing <= 0) return text;
  if (missing > Int{1} << 40U) check_text_size(static_cast<std::size_t>(1) << 40U);
  check_text_size(text.size() + static_cast<std::size_t>(missing));
  // Python's str.center puts the odd blank to the left if the width is odd.
  const Int left = alignment == '<' ? 0 : alignment == '>' ? missing : missing / 2 + (missing & width & 1);
  TextBuilder out;
  for (Int i = 0; i < left; ++i) out.append(fill);
  out.append(text);
  for (Int i = left; i < missing; ++i) out.append(fill);
  return out.finish(text.is_markup());
}

MarkedText capitalize(const MarkedText& text) {
  if (text.empty()) return text;
  TextBuilder out;
  const std::size_t first = code_point_end(text.view(), 0);
  out.append(map_case(text.slice(0, first), CaseMapping::title));
  out.append(map_case(text.slice(first, text.size()), CaseMapping::lower));
  return out.finish();
}

}  // namespace tensorfold::text::jinja
