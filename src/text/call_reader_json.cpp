// The readers of calls that are written as JSON or nearly so (call_reader.h).
#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/call_reader.h"
#include "text/jinja/json_value.h"

namespace tensorfold::text {

namespace {

using jinja::Value;

/// Finds where a JSON object or list ends, as text arrives.
class JsonExtent {
 public:
  explicit JsonExtent(std::size_t begin) : at_(begin) {}

  /// Reads on; true once the value is complete.
  bool advance(std::string_view text) {
    while (!complete_ && at_ < text.size()) step(text[at_++]);
    return complete_;
  }
  [[nodiscard]] std::size_t end() const { return at_; }

 private:
  void step(char byte) {
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (byte == '\\') {
        escaped_ = true;
      } else if (byte == '"') {
        in_string_ = false;
      }
    } else if (byte == '"') {
      in_string_ = true;
    } else if (byte == '{' || byte == '[') {
      ++depth_;
    } else if (byte == '}' || byte == ']') {
      complete_ = --depth_ <= 0;
    }
  }

  std::size_t at_;
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  bool complete_ = false;
};

constexpr std::array<std::string_view, 3> name_keys = {"name", "tool", "call"};
constexpr std::array<std::string_view, 3> argument_keys = {"arguments", "args", "parameters"};
/// What a call may say besides its arguments.
constexpr std::array<std::string_view, 3> other_keys = {"function", "type", "id"};

template <std::size_t size>
bool is_one_of(const std::array<std::string_view, size>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

bool is_call_key(std::string_view key) {
  return is_one_of(name_keys, key) || is_one_of(argument_keys, key) || is_one_of(other_keys, key);
}

std::optional<Value> parse_dict(std::string_view text) {
  try {
    Value value = jinja::parse_json(text);
    if (value.is_dict()) return value;
  } catch (const Error&) {
    return std::nullopt;  // not JSON, so not a call
  }
  return std::nullopt;
}

const OfferedTool* find_tool(const jinja::Dict& call, const OfferedTools& tools) {
  for (const std::string_view key : {name_keys[0], name_keys[1], name_keys[2], other_keys[0]}) {
    const Value* name = call.find(key);
    if (name != nullptr && name->is_string()) return tools.find(name->text().view());
  }
  return nullptr;
}

/// The arguments as a mapping: of a key for them (a mapping, or its JSON text), else all the other keys.
std::optional<Value> find_arguments(const jinja::Dict& call) {
  for (const std::string_view key : argument_keys) {
    const Value* arguments = call.find(key);
    if (arguments == nullptr) continue;
    if (arguments->is_dict()) return *arguments;
    if (arguments->is_none()) return Value::dict({});
    if (arguments->is_string()) {
      return arguments->text().empty() ? Value::dict({}) : parse_dict(arguments->text().view());
    }
    return std::nullopt;
  }
  std::vector<std::pair<Value, Value>> rest;
  for (const auto& entry : call.entries()) {
    if (!is_call_key(entry.first.text().view())) rest.push_back(entry);
  }
  return Value::dict(std::move(rest));
}

std::optional<ToolCall> read_json_call(const Value& value, const OfferedTools& tools) {
  if (value.is_list()) {
    for (const Value& item : value.sequence().items) {
      if (auto call = item.is_dict() ? read_json_call(item, tools) : std::nullopt) return call;
    }
    return std::nullopt;
  }
  if (!value.is_dict()) return std::nullopt;
  const Value* function = value.dict().find("function");
  const jinja::Dict& call = function != nullptr && function->is_dict() ? function->dict() : value.dict();
  const OfferedTool* tool = find_tool(call, tools);
  const auto arguments = tool != nullptr ? find_arguments(call) : std::nullopt;
  if (!arguments) return std::nullopt;
  return ToolCall{tool->name, compact_json(*arguments)};
}

std::optional<ToolCall> read_json_call(std::string_view text, const OfferedTools& tools) {
  try {
    return read_json_call(jinja::parse_json(text), tools);
  } catch (const Error&) {
    return std::nullopt;  // not JSON, so not a call
  }
}

/// JSON between tags. Text between the value and the closing tag is ignored.
class JsonReader : public CallReader {
 public:
  JsonReader(std::size_t position, std::string closer, const OfferedTools& tools)
      : position_(position), extent_(position), closer_(std::move(closer)), tools_(tools) {}

  ReadStatus read(std::string_view block, bool finished) override {
    if (!extent_.advance(block)) return finished ? give_text(block.size()) : ReadStatus::more;
    search_ = std::max(search_, extent_.end());
    const std::size_t end = find_tag(block, closer_, search_);
    if (end == std::string_view::npos) {
      search_ = std::max(extent_.end(), block.size() - std::min(block.size(), closer_.size() - 1));
      return finished ? give_text(block.size()) : ReadStatus::more;
    }
    auto call = read_json_call(block.substr(position_, extent_.end() - position_), tools_);
    if (!call) return give_text(end + closer_.size());
    return give_calls({*std::move(call)}, end + closer_.size());
  }

 private:
  std::size_t position_;
  JsonExtent extent_;
  std::size_t search_ = 0;
  std::string closer_;
  const OfferedTools& tools_;
};

/// An answer that is one JSON value. It is given up as soon as it cannot be a call any more.
class BareJsonReader : public CallReader {
 public:
  explicit BareJsonReader(const OfferedTools& tools) : tools_(tools) {}

  ReadStatus read(std::string_view block, bool finished) override {
    const std::string_view fence = "```";
    std::size_t at = skip_blanks(block, 0);
    const bool fenced = block.substr(at).starts_with(fence);
    const bool may_be_fence = fence.starts_with(block.substr(at));
    if (fenced) {
      at += fence.size();
      const std::string_view word = block.substr(at, 4);
      if (word.size() < 4 && std::string_view("json").starts_with(word)) return wait(block, finished);
      if (word == "json") at += word.size();
      at = skip_blanks(block, at);
    }
    if (at == block.size() || (!fenced && may_be_fence)) return wait(block, finished);
    const MarkerMatch start = match_start(block.substr(at));
    if (start == MarkerMatch::none) return give_text(0);
    if (start == MarkerMatch::partial) return wait(block, finished);
    if (!extent_) extent_.emplace(at);
    if (!extent_->advance(block)) return wait(block, finished);
    return read_tail(block, at, fenced, finished);
  }

 private:
  ReadStatus wait(std::string_view /*block*/, bool finished) { return finished ? give_text(0) : ReadStatus::more; }

  /// An object, or a list of objects, whose first key a call has.
  static MarkerMatch match_start(std::string_view text) {
    std::size_t at = 0;
    if (text[0] == '[') at = skip_blanks(text, 1);
    if (at == text.size()) return MarkerMatch::partial;
    if (text[at] != '{') return MarkerMatch::none;
    at = skip_blanks(text, at + 1);
    if (at == text.size()) return MarkerMatch::partial;
    if (text[at] != '"') return MarkerMatch::none;
    const std::size_t end = text.find('"', at + 1);
    constexpr std::size_t longest_key = 16;
    if (end == std::string_view::npos) return text.size() - at > longest_key ? MarkerMatch::none : MarkerMatch::partial;
    return is_call_key(text.substr(at + 1, end - at - 1)) ? MarkerMatch::full : MarkerMatch::none;
  }

  /// Behind the value: nothing but blanks and the end of the fence may follow.
  ReadStatus read_tail(std::string_view block, std::size_t begin, bool fenced, bool finished) {
    std::size_t at = skip_blanks(block, extent_->end());
    if (fenced && at < block.size()) {
      const MarkerMatch fence = match_tag(block.substr(at), "```");
      if (fence == MarkerMatch::none) return give_text(0);
      if (fence == MarkerMatch::partial) return wait(block, finished);
      at = skip_blanks(block, at + 3);
    }
    if (at < block.size()) return give_text(0);
    if (!finished) return ReadStatus::more;
    auto call = read_json_call(block.substr(begin, extent_->end() - begin), tools_);
    if (!call) return give_text(0);
    return give_calls({*std::move(call)}, block.size());
  }

  const OfferedTools& tools_;
  std::optional<JsonExtent> extent_;
};

/// Gemma's argument syntax: {key:value}, strings between <|"|> marks, otherwise JSON. Throws Error for anything else.
class GemmaArguments {
 public:
  explicit GemmaArguments(std::string_view text) : text_(text) {}

  /// The object that the text starts with.
  std::string object() {
    const NestingLevel level(*this);
    expect('{');
    std::string json = "{";
    while (!skip('}')) {
      if (json.size() > 1) {
        expect(',');
        if (skip('}')) break;
        json += ",";
      }
      json += "\"" + escaped_json(key()) + "\":";
      expect(':');
      json += value();
    }
    return json + "}";
  }
  [[nodiscard]] std::size_t end() const { return at_; }

 private:
  static constexpr std::string_view mark_ = "<|\"|>";
  static constexpr int deepest = 100;

  struct NestingLevel {
    explicit NestingLevel(GemmaArguments& owner) : owner_(owner) {
      if (++owner_.depth_ > deepest) refuse();
    }
    ~NestingLevel() { --owner_.depth_; }
    NestingLevel(const NestingLevel&) = delete;
    NestingLevel& operator=(const NestingLevel&) = delete;
    GemmaArguments& owner_;
  };

  [[noreturn]] static void refuse() { fail(ErrorKind::invalid_request, "these are no arguments of a call"); }

  bool skip(char byte) {
    at_ = skip_blanks(text_, at_);
    if (at_ >= text_.size() || text_[at_] != byte) return false;
    ++at_;
    return true;
  }
  void expect(char byte) {
    if (!skip(byte)) refuse();
  }

  /// Text up to `end`, and moves behind it.
  std::string_view take_until(std::string_view end) {
    const std::size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) refuse();
    const std::string_view taken = text_.substr(at_, found - at_);
    at_ = found + end.size();
    return taken;
  }

  std::string_view key() {
    at_ = skip_blanks(text_, at_);
    if (skip_mark()) return take_until(mark_);
    if (skip('"')) return take_until("\"");
    const std::size_t end = text_.find_first_of(":,{}[]", at_);
    if (end == std::string_view::npos) refuse();
    std::string_view name = text_.substr(at_, end - at_);
    at_ = end;
    while (!name.empty() && std::string_view(" \t\r\n").find(name.back()) != std::string_view::npos)
      name.remove_suffix(1);
    if (name.empty()) refuse();
    return name;
  }

  bool skip_mark() {
    if (!text_.substr(at_).starts_with(mark_)) return false;
    at_ += mark_.size();
    return true;
  }

  std::string value() {
    at_ = skip_blanks(text_, at_);
    if (at_ >= text_.size()) refuse();
    if (skip_mark()) return "\"" + escaped_json(take_until(mark_)) + "\"";
    if (text_[at_] == '{') return object();
    if (text_[at_] == '[') return list();
    return scalar();
  }

  std::string list() {
    const NestingLevel level(*this);
    expect('[');
    std::string json = "[";
    while (!skip(']')) {
      if (json.size() > 1) {
        expect(',');
        if (skip(']')) break;
        json += ",";
      }
      json += value();
    }
    return json + "]";
  }

  /// A number, a constant or a JSON string.
  std::string scalar() {
    std::size_t end = at_;
    if (text_[at_] == '"') {
      for (++end; end < text_.size() && text_[end] != '"'; ++end) end += text_[end] == '\\' ? 1 : 0;
      end = std::min(end + 1, text_.size());
    } else {
      end = std::min(text_.find_first_of(",}] \t\r\n", at_), text_.size());
    }
    const std::string json = compact_json(jinja::parse_json(text_.substr(at_, end - at_)));
    at_ = end;
    return json;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

class GemmaReader : public CallReader {
 public:
  GemmaReader(std::size_t position, const OfferedTools& tools)
      : position_(position), search_(position), tools_(tools) {}

  ReadStatus read(std::string_view block, bool finished) override {
    const std::size_t end = find_end(block);
    if (end == std::string_view::npos && !finished) return ReadStatus::more;
    const std::size_t behind = end == std::string_view::npos ? block.size() : end + closer_.size();
    auto call = read_call(block.substr(position_, std::min(end, block.size()) - position_));
    if (!call) return give_text(behind);
    return give_calls({*std::move(call)}, behind);
  }

 private:
  static constexpr std::string_view closer_ = "<tool_call|>";
  static constexpr std::string_view mark_ = "<|\"|>";

  /// The closing marker outside of strings.
  std::size_t find_end(std::string_view block) {
    while (true) {
      const std::size_t tag = block.find('<', search_);
      search_ = std::min(tag, block.size());
      if (tag == std::string_view::npos) return tag;
      const std::string_view text = block.substr(tag);
      const MarkerMatch mark = match_tag(text, mark_);
      const MarkerMatch closer = in_string_ ? MarkerMatch::none : match_tag(text, closer_);
      if (closer == MarkerMatch::full) return tag;
      if (mark == MarkerMatch::partial || closer == MarkerMatch::partial) return std::string_view::npos;
      if (mark == MarkerMatch::full) in_string_ = !in_string_;
      search_ = tag + (mark == MarkerMatch::full ? mark_.size() : 1);
    }
  }

  /// call:NAME{...} or :NAME{...}
  std::optional<ToolCall> read_call(std::string_view text) {
    text.remove_prefix(skip_blanks(text, 0));
    if (text.starts_with("call")) text.remove_prefix(4);
    const std::size_t brace = text.find('{');
    if (!text.starts_with(":") || brace == std::string_view::npos) return std::nullopt;
    std::string_view name = text.substr(1, brace - 1);
    while (!name.empty() && (name.back() == ' ' || name.back() == '\n')) name.remove_suffix(1);
    name.remove_prefix(skip_blanks(name, 0));
    const OfferedTool* tool = tools_.find(name);
    if (tool == nullptr) return std::nullopt;
    try {
      GemmaArguments arguments(text.substr(brace));
      std::string json = arguments.object();
      if (skip_blanks(text, brace + arguments.end()) != text.size()) return std::nullopt;
      return ToolCall{tool->name, std::move(json)};
    } catch (const Error&) {
      return std::nullopt;  // malformed, so not a call
    }
  }

  std::size_t position_;
  std::size_t search_;
  const OfferedTools& tools_;
  bool in_string_ = false;
};

}  // namespace

std::unique_ptr<CallReader> make_json_reader(std::size_t position, std::string closer, const OfferedTools& tools) {
  return std::make_unique<JsonReader>(position, std::move(closer), tools);
}

std::unique_ptr<CallReader> make_bare_json_reader(const OfferedTools& tools) {
  return std::make_unique<BareJsonReader>(tools);
}

std::unique_ptr<CallReader> make_gemma_reader(std::size_t position, const OfferedTools& tools) {
  return std::make_unique<GemmaReader>(position, tools);
}

}  // namespace tensorfold::text
