#include "text/growing_arguments.h"

#include <algorithm>

#include "base/error.h"
#include "text/call_reader.h"
#include "text/jinja/json_value.h"

namespace tensorfold::text {

namespace {

constexpr std::string_view mark = "<|\"|>";
/// Deeper than any JSON that the parser of whole calls accepts.
constexpr std::size_t deepest = 256;
constexpr std::size_t deepest_gemma = 100;

/// The value that `json` says, as compact JSON; empty if it says none.
std::string rewritten(std::string_view json) {
  try {
    return compact_json(jinja::parse_json(json));
  } catch (const Error&) {
    return {};  // the caller gives the call up
  }
}

/// Without a tail that may begin `tag`.
std::size_t size_without_begun(std::string_view text, std::string_view tag) {
  for (std::size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (tag.starts_with(text.substr(text.size() - size))) return text.size() - size;
  }
  return text.size();
}

bool is_high_surrogate(std::string_view escape) {
  const auto letter = [&](std::size_t at) { return static_cast<char>(escape[at] | 0x20); };
  return letter(2) == 'd' && (escape[3] == '8' || escape[3] == '9' || letter(3) == 'a' || letter(3) == 'b');
}

}  // namespace

GrowingArguments::Status GrowingArguments::advance(std::string_view text) {
  while (state_ != State::complete && state_ != State::broken && step(text)) {
  }
  if (state_ == State::complete) return Status::complete;
  return state_ == State::broken ? Status::broken : Status::more;
}

/// One piece of the syntax; false if more text must tell.
bool GrowingArguments::step(std::string_view text) {
  if (state_ == State::quoted) return read_quoted(text);
  if (state_ == State::marked) return read_marked(text);
  at_ = skip_blanks(text, at_);
  if (at_ == text.size()) return false;
  switch (state_) {
    case State::value:
    case State::first_item:
      return begin_value(text);
    case State::first_key:
    case State::key:
      return begin_key(text);
    case State::colon:
      return read_colon(text);
    default:
      return read_behind_item(text);
  }
}

bool GrowingArguments::break_off() {
  state_ = State::broken;
  return true;
}

void GrowingArguments::write_comma() {
  if (owes_comma_) json_ += ',';
  owes_comma_ = false;
}

bool GrowingArguments::open(char bracket) {
  if (open_.size() == (syntax_ == ArgumentSyntax::gemma ? deepest_gemma : deepest)) return break_off();
  write_comma();
  open_.push_back(bracket);
  json_ += bracket;
  ++at_;
  state_ = bracket == '{' ? State::first_key : State::first_item;
  return true;
}

bool GrowingArguments::close(char bracket) {
  if (open_.empty() || open_.back() != (bracket == '}' ? '{' : '[')) return break_off();
  open_.pop_back();
  owes_comma_ = false;
  json_ += bracket;
  ++at_;
  state_ = open_.empty() ? State::complete : State::behind_item;
  return true;
}

bool GrowingArguments::begin_string(State state, bool is_key, std::string_view closing, std::size_t opening_size) {
  write_comma();
  json_ += '"';
  string_is_key_ = is_key;
  closing_ = closing;
  at_ += opening_size;
  state_ = state;
  return true;
}

bool GrowingArguments::end_string(std::size_t closing_size) {
  json_ += '"';
  at_ += closing_size;
  state_ = string_is_key_ ? State::colon : State::behind_item;
  return true;
}

bool GrowingArguments::begin_value(std::string_view text) {
  const std::string_view rest = text.substr(at_);
  const char first = rest[0];
  if (open_.empty() && first != '{') return break_off();
  if (first == ']' && state_ == State::first_item) return close(first);
  if (first == '{' || first == '[') return open(first);
  if (first == '"') return begin_string(State::quoted, false, {}, 1);
  if (syntax_ == ArgumentSyntax::gemma) {
    if (rest.starts_with(mark)) return begin_string(State::marked, false, mark, mark.size());
    if (mark.starts_with(rest)) return false;
    // A list may end behind a comma.
    if (first == ']' && owes_comma_ && open_.back() == '[') return close(first);
  }
  return read_scalar(text);
}

bool GrowingArguments::read_scalar(std::string_view text) {
  search_ = text.find_first_of(",}] \t\r\n", std::max(search_, at_));
  if (search_ == std::string_view::npos) {
    search_ = text.size();
    return false;
  }
  const std::string value = rewritten(text.substr(at_, search_ - at_));
  if (value.empty()) return break_off();
  write_comma();
  json_ += value;
  at_ = search_;
  state_ = State::behind_item;
  return true;
}

bool GrowingArguments::begin_key(std::string_view text) {
  const std::string_view rest = text.substr(at_);
  const bool may_end = state_ == State::first_key || syntax_ == ArgumentSyntax::gemma;
  if (rest[0] == '}' && may_end) return close('}');
  if (syntax_ == ArgumentSyntax::json) {
    return rest[0] == '"' ? begin_string(State::quoted, true, {}, 1) : break_off();
  }
  if (rest.starts_with(mark)) return begin_string(State::marked, true, mark, mark.size());
  if (mark.starts_with(rest)) return false;
  if (rest[0] == '"') return begin_string(State::marked, true, "\"", 1);
  return read_bare_key(text);
}

bool GrowingArguments::read_bare_key(std::string_view text) {
  search_ = text.find_first_of(":,{}[]", std::max(search_, at_));
  if (search_ == std::string_view::npos) {
    search_ = text.size();
    return false;
  }
  std::string_view key = text.substr(at_, search_ - at_);
  key = key.substr(0, key.find_last_not_of(" \t\r\n") + 1);
  if (key.empty()) return break_off();
  write_comma();
  json_ += "\"" + escaped_json(key) + "\"";
  at_ = search_;
  state_ = State::colon;
  return true;
}

bool GrowingArguments::read_colon(std::string_view text) {
  if (text[at_] != ':') return break_off();
  json_ += ':';
  ++at_;
  state_ = State::value;
  return true;
}

bool GrowingArguments::read_behind_item(std::string_view text) {
  const char byte = text[at_];
  if (byte == '}' || byte == ']') return close(byte);
  if (byte != ',') return break_off();
  owes_comma_ = true;
  ++at_;
  state_ = open_.back() == '{' ? State::key : State::value;
  return true;
}

/// On in a JSON string: plain text, an escape or its end.
bool GrowingArguments::read_quoted(std::string_view text) {
  std::size_t end = at_;
  while (end < text.size() && text[end] != '"' && text[end] != '\\' && static_cast<unsigned char>(text[end]) >= 0x20) {
    ++end;
  }
  json_ += escaped_json(text.substr(at_, end - at_));
  at_ = end;
  if (at_ == text.size()) return false;
  if (text[at_] == '"') return end_string(1);
  return text[at_] == '\\' ? read_escape(text) : break_off();
}

bool GrowingArguments::read_escape(std::string_view text) {
  constexpr std::size_t unicode_size = 6;  // \u and four digits
  const std::string_view rest = text.substr(at_);
  if (rest.size() < 2) return false;
  std::size_t size = 2;
  if (rest[1] == 'u') {
    size = unicode_size;
    if (rest.size() < size) return false;
    if (is_high_surrogate(rest)) {
      // The other half must follow.
      size = 2 * unicode_size;
      if (rest.size() < size && std::string_view("\\u").starts_with(rest.substr(unicode_size, 2))) return false;
    }
  }
  const std::string value = rewritten("\"" + std::string(rest.substr(0, size)) + "\"");
  if (value.empty()) return break_off();
  json_ += value.substr(1, value.size() - 2);
  at_ += size;
  return true;
}

/// On in a string without escapes.
bool GrowingArguments::read_marked(std::string_view text) {
  const std::string_view rest = text.substr(at_);
  const std::size_t end = rest.find(closing_);
  const std::string_view plain =
      rest.substr(0, end != std::string_view::npos ? end : size_without_begun(rest, closing_));
  json_ += escaped_json(plain);
  at_ += plain.size();
  return end != std::string_view::npos && end_string(closing_.size());
}

}  // namespace tensorfold::text
