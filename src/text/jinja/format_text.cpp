#include "text/jinja/format_text.h"

#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace tensorfold::text::jinja {

namespace {

/// What stands between % and its letter, or behind the colon of a brace field.
struct FieldFormat {
  std::string fill = " ";
  char alignment = '\0';
  char sign = '-';
  bool alternate = false;
  bool grouped = false;
  Int width = 0;
  int precision = -1;
  char type = '\0';
};

constexpr int longest_precision = 400;

Int read_number(std::string_view text, std::size_t& at) {
  Int number = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    number = std::min<Int>(number * 10 + (text[at++] - '0'), Int{1} << 40U);
  }
  return number;
}

std::string group_thousands(const std::string& digits) {
  const std::size_t point = std::min(digits.find('.'), digits.size());
  std::string grouped;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && i < point && (point - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

/// Digits of a non-negative integer in base 2, 8 or 16.
std::string digits_in_base(Int value, unsigned base) {
  constexpr std::string_view letters = "0123456789abcdef";
  auto rest = static_cast<unsigned __int128>(value);
  std::string digits;
  do {
    digits.insert(digits.begin(), letters[static_cast<std::size_t>(rest % base)]);
    rest /= base;
  } while (rest != 0);
  return digits;
}

std::string float_digits(double magnitude, const FieldFormat& format) {
  const int precision = format.precision < 0 ? 6 : std::min(format.precision, longest_precision);
  switch (format.type) {
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", magnitude, precision);
    case 'e':
      return fmt::format("{:.{}e}", magnitude, precision);
    case 'E':
      return fmt::format("{:.{}E}", magnitude, precision);
    case '%':
      return fmt::format("{:.{}f}%", magnitude * 100, precision);
    case 'g':
      return fmt::format("{:.{}g}", magnitude, precision);
    case 'G':
      return fmt::format("{:.{}G}", magnitude, precision);
    default:
      if (format.precision < 0) return format_float(magnitude);
      return fmt::format("{:.{}g}", magnitude, precision);
  }
}

std::string integer_digits(Int magnitude, const FieldFormat& format) {
  switch (format.type) {
    case 'x':
      return (format.alternate ? "0x" : "") + digits_in_base(magnitude, 16);
    case 'X': {
      std::string digits = (format.alternate ? "0X" : "") + digits_in_base(magnitude, 16);
      for (char& digit : digits) digit = static_cast<char>(std::toupper(static_cast<unsigned char>(digit)));
      return digits;
    }
    case 'o':
      return (format.alternate ? "0o" : "") + digits_in_base(magnitude, 8);
    case 'b':
      return (format.alternate ? "0b" : "") + digits_in_base(magnitude, 2);
    default:
      return format_integer(magnitude);
  }
}

MarkedText pad_number(bool negative, std::string digits, const FieldFormat& format) {
  if (format.grouped) digits = group_thousands(digits);
  const std::string sign = negative ? "-" : format.sign == '+' ? "+" : format.sign == ' ' ? " " : "";
  if (format.alignment == '=') {
    const MarkedText padded = pad(MarkedText(digits), format.width - static_cast<Int>(sign.size()), format.fill, '>');
    return MarkedText(sign + padded.str());
  }
  return pad(MarkedText(sign + digits), format.width, format.fill, format.alignment == '\0' ? '>' : format.alignment);
}

MarkedText format_number(const Value& value, const FieldFormat& format) {
  const std::string_view float_types = "fFeEgG%";
  if (value.is_float() || float_types.find(format.type) != std::string_view::npos) {
    const double number = value.number();
    return pad_number(std::signbit(number), float_digits(std::fabs(number), format), format);
  }
  const Int number = value.integer();
  return pad_number(number < 0, integer_digits(number < 0 ? -number : number, format), format);
}

MarkedText format_as_text(MarkedText text, const FieldFormat& format) {
  if (format.precision >= 0) {
    text = get_slice(text, Value(), Value(static_cast<Int>(format.precision)), Value()).text();
  }
  return pad(text, format.width, format.fill, format.alignment == '\0' ? '<' : format.alignment);
}

/// One field of a percent format; `at` stands behind the percent sign and moves behind the letter.
class PercentFormatter {
 public:
  PercentFormatter(const MarkedText& format, const Value& arguments) : format_(format), arguments_(arguments) {}

  MarkedText run() {
    const std::string_view bytes = format_.view();
    std::size_t at = 0;
    while (at < bytes.size()) {
      const std::size_t percent = std::min(bytes.find('%', at), bytes.size());
      out_.append(format_, at, percent);
      at = percent + 1;
      if (percent < bytes.size()) format_field(bytes, at);
    }
    // Python takes a list for a mapping here, too, and Jinja2's undefined passes for one.
    const bool is_mapping = arguments_.is_dict() || arguments_.is_list() || arguments_.is_undefined();
    if (next_ < positional_count() && !is_mapping) {
      throw TemplateFailure("not all arguments converted during string formatting");
    }
    return out_.finish(format_.is_markup());
  }

 private:
  [[nodiscard]] std::size_t positional_count() const {
    return arguments_.is_sequence(SequenceKind::tuple) ? arguments_.sequence().items.size() : 1;
  }

  Value next_argument() {
    if (next_ >= positional_count()) throw TemplateFailure("not enough arguments for format string");
    const std::size_t index = next_++;
    return arguments_.is_sequence(SequenceKind::tuple) ? arguments_.sequence().items[index] : arguments_;
  }

  void format_field(std::string_view bytes, std::size_t& at) {
    std::optional<Value> named;
    if (at < bytes.size() && bytes[at] == '(') {
      const std::size_t end = bytes.find(')', at);
      if (end == std::string_view::npos) throw TemplateFailure("incomplete format key");
      if (!arguments_.is_dict()) throw TemplateFailure("format requires a mapping");
      const Value* found = arguments_.dict().find(bytes.substr(at + 1, end - at - 1));
      if (found == nullptr) throw TemplateFailure("a key of the format is missing");
      named = *found;
      at = end + 1;
    }
    FieldFormat format = read_flags(bytes, at);
    if (at >= bytes.size()) throw TemplateFailure("incomplete format");
    format.type = bytes[at++];
    if (format.type == '%') return out_.append("%");
    append_value(named ? *std::move(named) : next_argument(), format);
  }

  FieldFormat read_flags(std::string_view bytes, std::size_t& at) {
    FieldFormat format;
    format.alignment = '>';
    bool zero = false;
    for (; at < bytes.size() && std::string_view("-+ #0").find(bytes[at]) != std::string_view::npos; ++at) {
      if (bytes[at] == '-') format.alignment = '<';
      if (bytes[at] == '+' || (bytes[at] == ' ' && format.sign != '+')) format.sign = bytes[at];
      if (bytes[at] == '#') format.alternate = true;
      if (bytes[at] == '0') zero = true;
    }
    if (zero && format.alignment != '<') {
      format.fill = "0";
      format.alignment = '=';
    }
    format.width = read_number(bytes, at);
    if (at < bytes.size() && bytes[at] == '.') {
      ++at;
      format.precision = static_cast<int>(std::min<Int>(read_number(bytes, at), 1'000'000));
    }
    return format;
  }

  void append_value(const Value& value, FieldFormat format) {
    if (format.type == 's' || format.type == 'r' || format.type == 'a') {
      if (format.alignment == '=') {
        format.alignment = '>';
        format.fill = " ";
      }
      MarkedText text = format.type == 's' ? to_text(value) : representation(value);
      if (format_.is_markup()) text = escape_value(text);
      return out_.append(format_as_text(text, format));
    }
    if (format.type == 'c' && value.is_string()) return out_.append(format_as_text(value.text(), format));
    if (std::string_view("diuxXofFeEgG").find(format.type) == std::string_view::npos) {
      throw TemplateFailure(fmt::format("unsupported format character '{}'", format.type));
    }
    require_defined(value);
    if (!value.is_number()) {
      throw TemplateFailure(
          fmt::format("%{} format: a real number is required, not {}", format.type, type_name(value)));
    }
    const bool integral = std::string_view("diuxXo").find(format.type) != std::string_view::npos;
    if (integral && value.is_float()) return out_.append(format_number(static_cast<Int>(value.number()), format));
    out_.append(format_number(value, format));
  }

  const MarkedText& format_;
  const Value& arguments_;
  TextBuilder out_;
  std::size_t next_ = 0;
};

/// Reads [[fill]align][sign][#][0][width][,][.precision][type].
FieldFormat read_brace_format(std::string_view text) {
  FieldFormat format;
  std::size_t at = 0;
  const auto is_alignment = [](char byte) { return std::string_view("<>=^").find(byte) != std::string_view::npos; };
  const std::size_t fill_end = text.empty() ? 0 : code_point_end(text, 0);
  if (fill_end > 0 && fill_end < text.size() && is_alignment(text[fill_end])) {
    format.fill = std::string(text.substr(0, fill_end));
    format.alignment = text[fill_end];
    at = fill_end + 1;
  } else if (!text.empty() && is_alignment(text[0])) {
    format.alignment = text[at++];
  }
  if (at < text.size() && std::string_view("+- ").find(text[at]) != std::string_view::npos) format.sign = text[at++];
  if (at < text.size() && text[at] == '#') {
    format.alternate = true;
    ++at;
  }
  if (at < text.size() && text[at] == '0' && format.alignment == '\0') {
    format.fill = "0";
    format.alignment = '=';
    ++at;
  }
  format.width = read_number(text, at);
  if (at < text.size() && (text[at] == ',' || text[at] == '_')) {
    format.grouped = true;
    ++at;
  }
  if (at < text.size() && text[at] == '.') {
    ++at;
    format.precision = static_cast<int>(std::min<Int>(read_number(text, at), 1'000'000));
  }
  if (at < text.size()) format.type = text[at++];
  if (at != text.size()) throw TemplateFailure("Invalid format specifier");
  return format;
}

class BraceFormatter {
 public:
  BraceFormatter(const MarkedText& format, const Arguments& arguments) : format_(format), arguments_(arguments) {}

  MarkedText run() {
    const std::string_view bytes = format_.view();
    std::size_t at = 0;
    while (at < bytes.size()) {
      const std::size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
      out_.append(format_, at, brace);
      at = brace;
      if (at >= bytes.size()) break;
      if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
        out_.append(format_, at, at + 1);
        at += 2;
      } else if (bytes[at] == '}') {
        throw TemplateFailure("Single '}' encountered in format string");
      } else {
        const std::size_t end = bytes.find('}', at);
        if (end == std::string_view::npos) throw TemplateFailure("expected '}' before end of string");
        append_field(bytes.substr(at + 1, end - at - 1));
        at = end + 1;
      }
    }
    return out_.finish();
  }

 private:
  void append_field(std::string_view field) {
    const std::size_t colon = std::min(field.find(':'), field.size());
    std::string_view name = field.substr(0, colon);
    char conversion = '\0';
    if (name.size() >= 2 && name[name.size() - 2] == '!') {
      conversion = name.back();
      name.remove_suffix(2);
    }
    const std::string_view specification = colon < field.size() ? field.substr(colon + 1) : std::string_view();
    const FieldFormat format = read_brace_format(specification);
    const Value value = look_up(name);
    if (conversion == 'r') return out_.append(format_as_text(representation(value), format));
    if (conversion == '\0' && value.is_number() && !(value.is_bool() && specification.empty())) {
      return out_.append(format_number(value, format));
    }
    out_.append(format_as_text(to_text(value), format));
  }

  Value look_up(std::string_view name) {
    const std::size_t end = std::min(name.find_first_of(".["), name.size());
    const std::string_view first = name.substr(0, end);
    Value value = first.empty() || (first[0] >= '0' && first[0] <= '9') ? positional(first) : named(first);
    for (std::size_t at = end; at < name.size();) {
      const bool bracket = name[at] == '[';
      const std::size_t stop = std::min(bracket ? name.find(']', at) : name.find_first_of(".[", at + 1), name.size());
      const std::string_view part = name.substr(at + 1, stop - at - 1);
      const auto index = parse_integer(part);
      value = bracket ? get_item(value, index ? Value(*index) : Value(part)) : get_attribute(value, part);
      require_defined(value);
      at = bracket ? stop + 1 : stop;
    }
    return value;
  }

  Value positional(std::string_view digits) {
    std::size_t at = 0;
    const Int index = digits.empty() ? static_cast<Int>(next_++) : read_number(digits, at);
    if (index >= static_cast<Int>(arguments_.positional.size())) {
      throw TemplateFailure("Replacement index out of range for positional args tuple");
    }
    return arguments_.positional[static_cast<std::size_t>(index)];
  }

  Value named(std::string_view name) {
    for (const auto& [candidate, value] : arguments_.named) {
      if (candidate == name) return value;
    }
    throw TemplateFailure(fmt::format("a value named '{}' is missing in format", name));
  }

  const MarkedText& format_;
  const Arguments& arguments_;
  TextBuilder out_;
  std::size_t next_ = 0;
};

}  // namespace

MarkedText percent_format(const MarkedText& format, const Value& arguments) {
  return PercentFormatter(format, arguments).run();
}

MarkedText brace_format(const MarkedText& format, const Arguments& arguments) {
  return BraceFormatter(format, arguments).run();
}

}  // namespace tensorfold::text::jinja
