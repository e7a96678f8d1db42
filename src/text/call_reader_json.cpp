// The readers of calls that are written as JSON or nearly so (call_reader.h).
#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/call_reader.h"
#include "text/growing_arguments.h"
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

/// A JSON string and where it ends.
struct QuotedText {
  MarkerMatch match = MarkerMatch::none;
  std::string text;
  std::size_t end = 0;
};

QuotedText read_quoted(std::string_view text, std::size_t at) {
  if (at == text.size()) return {MarkerMatch::partial, {}, 0};
  if (text[at] != '"') return {};
  std::size_t end = at + 1;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  if (end >= text.size()) return {MarkerMatch::partial, {}, 0};
  try {
    const Value value = jinja::parse_json(text.substr(at, end + 1 - at));
    return {MarkerMatch::full, value.text().str(), end + 1};
  } catch (const Error&) {
    return {};  // not JSON, so not a call
  }
}

/// How a call begins whose arguments can go out as they grow: {"name": NAME, "arguments": {..., perhaps inside of
/// "function" and behind "type" and "id". Other spellings are understood once they are complete.
struct CallHead {
  MarkerMatch match = MarkerMatch::none;
  std::string name;
  std::size_t arguments = 0;  ///< where their brace stands
};

CallHead read_call_head(std::string_view text, std::size_t at) {
  const CallHead partial = {MarkerMatch::partial, {}, 0};
  CallHead head;
  bool nested = false;
  // Moves behind blanks.
  const auto is_at = [&](char letter) {
    at = skip_blanks(text, at);
    return at < text.size() && text[at] == letter;
  };
  if (!is_at('{')) return at == text.size() ? partial : CallHead{};
  while (true) {
    const QuotedText key = read_quoted(text, skip_blanks(text, at + 1));
    if (key.match != MarkerMatch::full) return {key.match, {}, 0};
    at = key.end;
    if (!is_at(':')) return at == text.size() ? partial : CallHead{};
    at = skip_blanks(text, at + 1);
    if (at == text.size()) return partial;
    if (text[at] == '{' && key.text == "function" && !nested && head.name.empty()) {
      nested = true;
      continue;
    }
    if (text[at] == '{' && key.text == "arguments" && !head.name.empty()) {
      head.match = MarkerMatch::full;
      head.arguments = at;
      return head;
    }
    const QuotedText value = read_quoted(text, at);
    if (value.match != MarkerMatch::full) return {value.match, {}, 0};
    if (key.text == "name" && head.name.empty()) {
      head.name = value.text;
    } else if (key.text != "type" && key.text != "id") {
      return {};
    }
    at = value.end;
    if (!is_at(',')) return at == text.size() ? partial : CallHead{};
  }
}

/// JSON between tags. Text between the value and the closing tag is ignored.
class JsonReader : public CallReader {
 public:
  JsonReader(std::size_t position, std::string closer, const OfferedTools& tools)
      : position_(position), extent_(position), closer_(std::move(closer)), tools_(tools) {}

  ReadStatus read(std::string_view block, bool finished) override {
    const bool complete = extent_.advance(block);
    grow(block.substr(0, extent_.end()));
    if (!complete) return finished ? give_text(block.size()) : ReadStatus::more;
    search_ = std::max(search_, extent_.end());
    const std::size_t end = find_tag(block, closer_, search_);
    if (end == std::string_view::npos) {
      search_ = std::max(extent_.end(), block.size() - std::min(block.size(), closer_.size() - 1));
      return finished ? give_text(block.size()) : ReadStatus::more;
    }
    auto call = read_json_call(block.substr(position_, extent_.end() - position_), tools_);
    if (!call || (arguments_ && grown_ != GrowingArguments::Status::complete)) return give_text(end + closer_.size());
    // One reading for streamed and whole replies.
    return give_calls({arguments_ ? call_ : *std::move(call)}, end + closer_.size());
  }

  [[nodiscard]] const ToolCall* growing() const override { return arguments_ ? &call_ : nullptr; }

 private:
  /// The arguments begin within this many bytes, or the call is read as a whole.
  static constexpr std::size_t longest_head_ = 512;

  void grow(std::string_view block) {
    if (!head_is_read_) read_head(block);
    if (arguments_) grown_ = arguments_->advance(block);
  }

  void read_head(std::string_view block) {
    const CallHead head = read_call_head(block, position_);
    if (head.match == MarkerMatch::partial && block.size() - position_ <= longest_head_) return;
    head_is_read_ = true;
    if (head.match != MarkerMatch::full || head.arguments - position_ > longest_head_) return;
    const OfferedTool* tool = tools_.find(head.name);
    if (tool == nullptr) return;
    call_.name = tool->name;
    arguments_.emplace(ArgumentSyntax::json, head.arguments, call_.arguments);
  }

  std::size_t position_;
  JsonExtent extent_;
  std::size_t search_ = 0;
  std::string closer_;
  const OfferedTools& tools_;
  bool head_is_read_ = false;
  ToolCall call_;
  std::optional<GrowingArguments> arguments_;
  GrowingArguments::Status grown_ = GrowingArguments::Status::more;
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

/// call:NAME{...} or :NAME{...}, in Gemma's argument syntax.
class GemmaReader : public CallReader {
 public:
  GemmaReader(std::size_t position, const OfferedTools& tools)
      : position_(position), search_(position), tools_(tools) {}

  ReadStatus read(std::string_view block, bool finished) override {
    const std::size_t end = find_end(block);
    const bool closed = end != std::string_view::npos;
    const std::string_view text = block.substr(0, closed ? end : finished ? block.size() : search_);
    grow(text);
    if (!closed && !finished) return ReadStatus::more;
    const std::size_t behind = closed ? end + closer_.size() : block.size();
    const bool complete = arguments_ && grown_ == GrowingArguments::Status::complete;
    if (!complete || skip_blanks(text, arguments_->end()) != text.size()) return give_text(behind);
    return give_calls({call_}, behind);
  }

  [[nodiscard]] const ToolCall* growing() const override { return arguments_ ? &call_ : nullptr; }

 private:
  static constexpr std::string_view closer_ = "<tool_call|>";
  static constexpr std::string_view mark_ = "<|\"|>";

  /// The closing marker outside of strings; `search_` is how far it is known that there is none.
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

  void grow(std::string_view text) {
    if (!head_is_read_) read_head(text);
    if (arguments_) grown_ = arguments_->advance(text);
  }

  void read_head(std::string_view text) {
    const std::size_t brace = text.find('{', std::min(text.size(), position_));
    if (brace == std::string_view::npos) return;
    head_is_read_ = true;
    std::string_view name = text.substr(position_, brace - position_);
    name.remove_prefix(skip_blanks(name, 0));
    if (name.starts_with("call")) name.remove_prefix(4);
    if (!name.starts_with(":")) return;
    name.remove_prefix(skip_blanks(name, 1));
    while (!name.empty() && (name.back() == ' ' || name.back() == '\n')) name.remove_suffix(1);
    const OfferedTool* tool = tools_.find(name);
    if (tool == nullptr) return;
    call_.name = tool->name;
    arguments_.emplace(ArgumentSyntax::gemma, brace, call_.arguments);
  }

  std::size_t position_;
  std::size_t search_;
  const OfferedTools& tools_;
  bool in_string_ = false;
  bool head_is_read_ = false;
  ToolCall call_;
  std::optional<GrowingArguments> arguments_;
  GrowingArguments::Status grown_ = GrowingArguments::Status::more;
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
