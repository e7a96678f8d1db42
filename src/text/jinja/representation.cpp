// Values as text (operators.h).
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace tensorfold::text::jinja {

namespace {

void append_representation(TextBuilder& out, const Value& value);

void append_quoted(TextBuilder& out, const MarkedText& text) {
  const std::string_view bytes = text.view();
  const bool double_quotes = bytes.find('\'') != std::string_view::npos && bytes.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  out.append(std::string_view(&quote, 1));
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t begin = at;
    const char32_t code_point = next_code_point(bytes, at);
    const bool untrusted = text.untrusted_at(begin);
    if (code_point == static_cast<unsigned char>(quote) || code_point == '\\') {
      out.append("\\", untrusted);
      out.append(text, begin, at);
    } else if (code_point == '\n' || code_point == '\r' || code_point == '\t') {
      out.append(code_point == '\n' ? "\\n" : code_point == '\r' ? "\\r" : "\\t", untrusted);
    } else if (code_point != ' ' && !is_printable(code_point)) {
      const auto number = static_cast<std::uint32_t>(code_point);
      out.append(number < 0x100     ? fmt::format("\\x{:02x}", number)
                 : number < 0x10000 ? fmt::format("\\u{:04x}", number)
                                    : fmt::format("\\U{:08x}", number),
                 untrusted);
    } else {
      out.append(text, begin, at);
    }
  }
  out.append(std::string_view(&quote, 1));
}

void append_items(TextBuilder& out, const std::vector<Value>& items) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) out.append(", ");
    first = false;
    append_representation(out, item);
  }
}

void append_sequence(TextBuilder& out, const Sequence& sequence) {
  switch (sequence.kind) {
    case SequenceKind::list:
      out.append("[");
      append_items(out, sequence.items);
      out.append("]");
      return;
    case SequenceKind::tuple:
      out.append("(");
      append_items(out, sequence.items);
      out.append(sequence.items.size() == 1 ? ",)" : ")");
      return;
    case SequenceKind::generator:
      out.append("<generator object>");
      return;
    case SequenceKind::range: {
      const auto& items = sequence.items;
      const Int first = items.empty() ? 0 : items.front().integer();
      const Int step = items.size() < 2 ? 1 : items[1].integer() - first;
      const Int stop = items.empty() ? 0 : items.back().integer() + step;
      out.append(fmt::format("range({}, {}", format_integer(first), format_integer(stop)));
      out.append(step == 1 ? std::string(")") : fmt::format(", {})", format_integer(step)));
      return;
    }
    default:
      out.append(sequence.kind == SequenceKind::dict_keys     ? "dict_keys(["
                 : sequence.kind == SequenceKind::dict_values ? "dict_values(["
                                                              : "dict_items([");
      append_items(out, sequence.items);
      out.append("])");
  }
}

void append_dict(TextBuilder& out, const Dict& dict) {
  out.append("{");
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) out.append(", ");
    first = false;
    append_representation(out, key);
    out.append(": ");
    append_representation(out, value);
  }
  out.append("}");
}

void append_representation(TextBuilder& out, const Value& value) {
  if (RenderMeter* meter = RenderMeter::current()) meter->step();
  if (value.is_string()) {
    if (value.text().is_markup()) out.append("Markup(");
    append_quoted(out, value.text());
    if (value.text().is_markup()) out.append(")");
  } else if (value.is_none()) {
    out.append("None");
  } else if (value.is_undefined()) {
    out.append("Undefined");
  } else if (value.is_bool()) {
    out.append(value.boolean() ? "True" : "False");
  } else if (value.is_int()) {
    out.append(format_integer(value.integer()));
  } else if (value.is_float()) {
    out.append(format_float(value.number()));
  } else if (value.is_dict()) {
    append_dict(out, value.dict());
  } else if (value.is_sequence()) {
    append_sequence(out, value.sequence());
  } else {
    out.append(value.object().representation());
  }
}

}  // namespace

std::string format_integer(Int value) {
  auto rest = value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string digits;
  do {
    digits.insert(digits.begin(), static_cast<char>('0' + static_cast<int>(rest % 10)));
    rest /= 10;
  } while (rest != 0);
  return value < 0 ? "-" + digits : digits;
}

std::string format_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // The shortest digits that read back as the same double, laid out as Python does: an exponent below 1e-4 and from
  // 1e16.
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string scientific(buffer, end);
  const std::size_t mark = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(mark + 1));
  if (exponent >= -4 && exponent < 16) {
    const auto fixed_end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
    std::string fixed(buffer, fixed_end);
    if (fixed.find('.') == std::string::npos) fixed += ".0";
    return fixed;
  }
  return fmt::format("{}e{}{:02}", scientific.substr(0, mark), exponent < 0 ? '-' : '+', std::abs(exponent));
}

std::optional<Int> parse_integer(std::string_view digits, int base) {
  const bool negative = digits.starts_with("-");
  if (negative || digits.starts_with("+")) digits.remove_prefix(1);
  if (digits.empty()) return std::nullopt;
  Int value = 0;
  const Int limit = static_cast<Int>((~static_cast<unsigned __int128>(0)) >> 1U);
  for (const char digit : digits) {
    const int number = digit >= '0' && digit <= '9'   ? digit - '0'
                       : digit >= 'a' && digit <= 'z' ? digit - 'a' + 10
                       : digit >= 'A' && digit <= 'Z' ? digit - 'A' + 10
                                                      : 99;
    if (number >= base || value > (limit - number) / base) return std::nullopt;
    value = value * base + number;
  }
  return negative ? -value : value;
}

MarkedText representation(const Value& value) {
  TextBuilder out;
  append_representation(out, value);
  return out.finish();
}

MarkedText to_text(const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return MarkedText();
  return representation(value);
}

MarkedText escape_html(const MarkedText& text) {
  TextBuilder out;
  const std::string_view bytes = text.view();
  std::size_t copied = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    const char byte = bytes[at];
    const std::string_view entity = byte == '&'    ? "&amp;"
                                    : byte == '<'  ? "&lt;"
                                    : byte == '>'  ? "&gt;"
                                    : byte == '"'  ? "&#34;"
                                    : byte == '\'' ? "&#39;"
                                                   : "";
    if (entity.empty()) continue;
    out.append(text, copied, at);
    out.append(entity, text.untrusted_at(at));
    copied = at + 1;
  }
  out.append(text, copied, bytes.size());
  return out.finish(true);
}

MarkedText escape_value(const Value& value) {
  if (value.is_string() && value.text().is_markup()) return value.text();
  return escape_html(to_text(value));
}

}  // namespace tensorfold::text::jinja
