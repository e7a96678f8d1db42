#include "text/jinja/json_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/utf8.h"
#include "text/jinja/operators.h"

namespace tensorfold::text::jinja {

namespace {

class JsonParser {
 public:
  JsonParser(std::string_view json, bool untrusted, const JsonLimits& limits)
      : json_(json), untrusted_(untrusted), limits_(limits) {}

  Value run() {
    if (json_.size() > limits_.bytes) fail_at(0, "the document is too large");
    Value value = parse_value();
    skip_space();
    if (at_ != json_.size()) fail_at(at_, "unexpected text behind the value");
    return value;
  }

 private:
  [[noreturn]] static void fail_at(std::size_t offset, std::string_view message) {
    fail(ErrorKind::invalid_request, "invalid JSON at byte {}: {}", offset, message);
  }

  void skip_space() {
    while (at_ < json_.size() && std::string_view(" \t\r\n").find(json_[at_]) != std::string_view::npos) ++at_;
  }

  [[nodiscard]] char peek() const { return at_ < json_.size() ? json_[at_] : '\0'; }

  bool skip(char byte) {
    skip_space();
    if (peek() != byte || at_ >= json_.size()) return false;
    ++at_;
    return true;
  }

  Value parse_value() {
    skip_space();
    if (at_ >= json_.size()) fail_at(at_, "the document ends early");
    switch (json_[at_]) {
      case '{':
        return parse_object();
      case '[':
        return parse_array();
      case '"':
        return parse_string();
      case 't':
        return parse_word("true", Value(true));
      case 'f':
        return parse_word("false", Value(false));
      case 'n':
        return parse_word("null", Value());
      default:
        return parse_number();
    }
  }

  Value parse_word(std::string_view word, Value value) {
    if (json_.substr(at_, word.size()) != word) fail_at(at_, "unexpected word");
    at_ += word.size();
    return value;
  }

  void enter() {
    if (++depth_ > limits_.depth) fail_at(at_, "values nest too deeply");
    ++at_;
  }

  Value parse_object() {
    enter();
    std::vector<std::pair<Value, Value>> entries;
    while (!skip('}')) {
      if (!entries.empty() && !skip(',')) fail_at(at_, "expected ',' or '}'");
      skip_space();
      if (peek() != '"') fail_at(at_, "expected a key");
      Value key = parse_string();
      if (!skip(':')) fail_at(at_, "expected ':'");
      entries.emplace_back(std::move(key), parse_value());
    }
    --depth_;
    return Value::dict(std::move(entries));
  }

  Value parse_array() {
    enter();
    std::vector<Value> items;
    while (!skip(']')) {
      if (!items.empty() && !skip(',')) fail_at(at_, "expected ',' or ']'");
      items.push_back(parse_value());
    }
    --depth_;
    return Value::list(std::move(items));
  }

  Value parse_string() {
    ++at_;
    std::string text;
    while (true) {
      if (at_ >= json_.size()) fail_at(at_, "a string does not end");
      const auto byte = static_cast<unsigned char>(json_[at_]);
      if (byte == '"') break;
      if (byte < 0x20) fail_at(at_, "a control character in a string");
      if (byte == '\\') {
        parse_escape(text);
      } else {
        const std::size_t begin = at_;
        if (next_code_point(json_, at_) == 0xFFFD && json_.substr(begin, at_ - begin) != "\xEF\xBF\xBD") {
          fail_at(begin, "invalid UTF-8");
        }
        text.append(json_.substr(begin, at_ - begin));
      }
    }
    ++at_;
    return MarkedText(std::move(text), untrusted_);
  }

  void parse_escape(std::string& text) {
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view values = "\"\\/\b\f\n\r\t";
    const std::size_t begin = at_++;
    if (peek() == 'u') {
      char32_t code_point = parse_hex(begin);
      if (code_point >= 0xD800 && code_point < 0xDC00 && json_.substr(at_, 2) == "\\u") {
        ++at_;
        const char32_t low = parse_hex(begin);
        if (low < 0xDC00 || low > 0xDFFF) fail_at(begin, "a lone surrogate");
        code_point = 0x10000 + ((code_point - 0xD800) << 10U) + (low - 0xDC00);
      } else if (code_point >= 0xD800 && code_point < 0xE000) {
        fail_at(begin, "a lone surrogate");
      }
      append_utf8(text, code_point);
      return;
    }
    const std::size_t known = at_ < json_.size() ? letters.find(peek()) : std::string_view::npos;
    if (known == std::string_view::npos) fail_at(begin, "an unknown escape");
    text.push_back(values[known]);
    ++at_;
  }

  /// At the u of an escape: its four digits.
  char32_t parse_hex(std::size_t begin) {
    const auto number = parse_integer(json_.substr(at_ + 1, 4), 16);
    const bool signed_digits = at_ + 1 < json_.size() && (json_[at_ + 1] == '-' || json_[at_ + 1] == '+');
    if (at_ + 5 > json_.size() || !number || signed_digits) fail_at(begin, "a malformed \\u escape");
    at_ += 5;
    return static_cast<char32_t>(*number);
  }

  Value parse_number() {
    const std::size_t begin = at_;
    const auto digits = [&] {
      const std::size_t first = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      if (at_ == first) fail_at(begin, "unexpected character");
    };
    if (peek() == '-') ++at_;
    const bool zero = peek() == '0';
    const std::size_t whole = at_;
    digits();
    if (zero && at_ > whole + 1) fail_at(begin, "a number with a leading zero");
    bool is_float = false;
    if (peek() == '.') {
      ++at_;
      digits();
      is_float = true;
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
      is_float = true;
    }
    const std::string_view text = json_.substr(begin, at_ - begin);
    if (!is_float) {
      if (const auto integer = parse_integer(text)) return *integer;
    }
    return parse_double(text, begin);
  }

  static Value parse_double(std::string_view text, std::size_t begin) {
    double number = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
    if (result.ec == std::errc::result_out_of_range) {
      // Too small becomes zero as in Python; too large has no JSON spelling to go back to.
      number = std::strtod(std::string(text).c_str(), nullptr);
      if (std::isinf(number)) fail_at(begin, "a number is too large");
    }
    return number;
  }

  std::string_view json_;
  bool untrusted_;
  JsonLimits limits_;
  std::size_t at_ = 0;
  std::size_t depth_ = 0;
};

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  MarkedText run(const Value& value) {
    write(value);
    check_text_size(out_.size());
    return MarkedText(std::move(out_), untrusted_);
  }

 private:
  void write(const Value& value) {
    if (RenderMeter* meter = RenderMeter::current()) meter->step();
    check_text_size(out_.size());
    if (value.is_string()) {
      write_string(value.text());
    } else if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.boolean() ? "true" : "false";
    } else if (value.is_int()) {
      out_ += format_integer(value.integer());
    } else if (value.is_float()) {
      write_float(value.number());
    } else if (value.is_dict()) {
      write_dict(value.dict());
    } else if (value.is_list() || value.is_sequence(SequenceKind::tuple)) {
      write_items(value.sequence().items);
    } else {
      throw TemplateFailure(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
    }
  }

  void write_float(double number) {
    if (std::isnan(number)) {
      out_ += "NaN";
    } else if (std::isinf(number)) {
      out_ += number < 0 ? "-Infinity" : "Infinity";
    } else {
      out_ += format_float(number);
    }
  }

  void write_string(const MarkedText& text) {
    untrusted_ = untrusted_ || !text.untrusted().empty();
    constexpr std::string_view escaped = "\"\\\n\r\t\b\f";
    constexpr std::string_view letters = "\"\\nrtbf";
    out_ += '"';
    const std::string_view bytes = text.view();
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t begin = at;
      const char32_t code_point = next_code_point(bytes, at);
      const std::size_t known =
          code_point < 0x80 ? escaped.find(static_cast<char>(code_point)) : std::string_view::npos;
      if (known != std::string_view::npos) {
        out_ += '\\';
        out_ += letters[known];
      } else if (code_point < 0x20) {
        out_ += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code_point));
      } else if (code_point >= 0x7F && style_.ensure_ascii && code_point != 0x7F) {
        write_ascii(static_cast<std::uint32_t>(code_point));
      } else {
        out_.append(bytes.substr(begin, at - begin));
      }
    }
    out_ += '"';
  }

  void write_ascii(std::uint32_t code_point) {
    if (code_point >= 0x10000) {
      code_point -= 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (code_point >> 10U), 0xDC00 + (code_point & 0x3FFU));
    } else {
      out_ += fmt::format("\\u{:04x}", code_point);
    }
  }

  /// Between two items, before the first one (`first`) or behind the last one (`last`).
  void write_break(bool first, bool last) {
    if (!first && !last) out_ += style_.indent ? trimmed_separator() : style_.item_separator;
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level_ - (last ? 1 : 0); ++i) out_ += *style_.indent;
  }

  /// json.dumps writes "," for its default separator where it breaks lines.
  [[nodiscard]] std::string trimmed_separator() const {
    return style_.item_separator == ", " ? "," : style_.item_separator;
  }

  void write_items(const std::vector<Value>& items) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      write_break(i == 0, false);
      write(items[i]);
    }
    write_break(false, true);
    --level_;
    out_ += ']';
  }

  void write_dict(const Dict& dict) {
    if (dict.size() == 0) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* left, const auto* right) { return less(left->first, right->first); });
    }
    out_ += '{';
    ++level_;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      write_break(i == 0, false);
      write_key(entries[i]->first);
      out_ += style_.key_separator;
      write(entries[i]->second);
    }
    write_break(false, true);
    --level_;
    out_ += '}';
  }

  void write_key(const Value& key) {
    if (key.is_string()) return write_string(key.text());
    if (!key.is_none() && !key.is_number()) {
      throw TemplateFailure(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
    }
    out_ += '"';
    write(key);
    out_ += '"';
  }

  const JsonStyle& style_;
  std::string out_;
  bool untrusted_ = false;
  int level_ = 0;
};

}  // namespace

Value parse_json(std::string_view json, bool untrusted, const JsonLimits& limits) {
  return JsonParser(json, untrusted, limits).run();
}

Value from_json(const nlohmann::ordered_json& json, bool untrusted) {
  if (json.is_object()) {
    std::vector<std::pair<Value, Value>> entries;
    for (const auto& [key, item] : json.items()) {
      entries.emplace_back(MarkedText(key, untrusted), from_json(item, untrusted));
    }
    return Value::dict(std::move(entries));
  }
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(from_json(item, untrusted));
    return Value::list(std::move(items));
  }
  if (json.is_string()) return MarkedText(json.get<std::string>(), untrusted);
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned()) return static_cast<Int>(json.get<std::uint64_t>());
  if (json.is_number_integer()) return static_cast<Int>(json.get<std::int64_t>());
  if (json.is_number_float()) return json.get<double>();
  return {};
}

MarkedText dump_json(const Value& value, const JsonStyle& style) { return JsonWriter(style).run(value); }

}  // namespace tensorfold::text::jinja
