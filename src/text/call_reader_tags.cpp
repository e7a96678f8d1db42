// The readers whose arguments stand between tags (call_reader.h).
#include <algorithm>

#include "base/error.h"
#include "text/call_reader.h"
#include "text/jinja/json_value.h"

namespace tensorfold::text {

namespace {

/// A tag with a name must end within this many bytes.
constexpr std::size_t longest_tag = 256;

/// The end of `text` without a tail that may begin `tag`, and without the line end before such a tail.
std::size_t settled_end(std::string_view text, std::string_view tag) {
  std::size_t end = text.size();
  for (std::size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (match_tag(text.substr(text.size() - size), tag) != MarkerMatch::none) {
      end = text.size() - size;
      break;
    }
  }
  if (end > 0 && text[end - 1] == '\n') --end;
  if (end > 0 && text[end - 1] == '\r') --end;
  return end;
}

/// Removes one line end at the end.
std::string_view without_last_newline(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.ends_with('\r')) text.remove_suffix(1);
  return text;
}

/// <function=NAME> <parameter=KEY> value </parameter> ... </function>
class FunctionReader : public CallReader {
 public:
  FunctionReader(std::size_t position, std::string closer, const OfferedTools& tools)
      : position_(position), closer_(std::move(closer)), tools_(tools) {}

  ReadStatus read(std::string_view block, bool finished) override {
    while (true) {
      const Step step = advance(block);
      if (step == Step::on) continue;
      if (step == Step::broken) return give_text(position_);
      if (step == Step::more) return finished ? give_text(block.size()) : ReadStatus::more;
      if (tool_ == nullptr) return give_text(position_);
      return give_calls({call_}, position_);
    }
  }

  [[nodiscard]] const ToolCall* growing() const override {
    return tool_ != nullptr && has_parameter_ ? &call_ : nullptr;
  }

 private:
  enum class State { function, parameter, value, closing };
  enum class Step { on, more, broken, done };

  Step advance(std::string_view block) {
    switch (state_) {
      case State::function:
        return read_function(block);
      case State::parameter:
        return read_parameter(block);
      case State::value:
        return read_value(block);
      case State::closing:
        return read_closing(block);
    }
    return Step::broken;
  }

  /// At blanks and `tag`; moves behind them.
  Step expect(std::string_view block, std::string_view tag) {
    const std::size_t at = skip_blanks(block, position_);
    const MarkerMatch match = match_tag(block.substr(at), tag);
    if (match == MarkerMatch::partial) return Step::more;
    position_ = at + (match == MarkerMatch::full ? tag.size() : 0);
    return match == MarkerMatch::full ? Step::on : Step::broken;
  }

  /// The name up to '>'; moves behind it.
  Step read_name(std::string_view block, std::string& name) {
    const std::size_t end = block.find_first_of("><\n", position_);
    if (end == std::string_view::npos) return block.size() - position_ > longest_tag ? Step::broken : Step::more;
    const std::size_t length = end - position_;
    if (block[end] != '>' || length == 0 || length > longest_tag) return Step::broken;
    name = block.substr(position_, length);
    position_ = end + 1;
    return Step::on;
  }

  Step read_function(std::string_view block) {
    if (!in_tag_) {
      const Step step = expect(block, "<function=");
      if (step != Step::on) return step;
      in_tag_ = true;
    }
    std::string name;
    const Step step = read_name(block, name);
    if (step != Step::on) return step;
    in_tag_ = false;
    tool_ = tools_.find(name);
    call_.name = tool_ != nullptr ? tool_->name : name;
    state_ = State::parameter;
    return Step::on;
  }

  Step read_parameter(std::string_view block) {
    if (!in_tag_) {
      const std::size_t at = skip_blanks(block, position_);
      const MarkerMatch end = match_tag(block.substr(at), "</function>");
      if (end == MarkerMatch::full) {
        call_.arguments += call_.arguments.empty() ? "{}" : "}";
        position_ = at + std::string_view("</function>").size();
        state_ = State::closing;
        return Step::on;
      }
      const Step step = expect(block, "<parameter=");
      if (step == Step::broken && end == MarkerMatch::partial) return Step::more;
      if (step != Step::on) return step;
      in_tag_ = true;
    }
    const Step step = read_name(block, key_);
    if (step != Step::on) return step;
    in_tag_ = false;
    begin_value();
    return Step::on;
  }

  void begin_value() {
    call_.arguments += (call_.arguments.empty() ? "{\"" : ",\"") + escaped_json(key_) + "\":";
    streams_ = tool_ == nullptr || is_text_parameter(*tool_, key_);
    if (streams_) call_.arguments += "\"";
    value_starts_ = true;
    has_parameter_ = true;
    search_ = position_;
    state_ = State::value;
  }

  Step read_value(std::string_view block) {
    constexpr std::string_view tag = "</parameter>";
    if (value_starts_ && !skip_first_newline(block)) return Step::more;
    const std::size_t end = find_tag(block, tag, std::max(search_, position_));
    if (end == std::string_view::npos) {
      search_ = std::max(position_, block.size() - std::min(block.size(), tag.size() - 1));
      if (streams_) append_text(block.substr(position_, settled_end(block.substr(position_), tag)));
      return Step::more;
    }
    const std::string_view rest = without_last_newline(block.substr(position_, end - position_));
    if (streams_) {
      append_text(rest);
      call_.arguments += "\"";
    } else {
      call_.arguments += typed_argument(*tool_, key_, rest, ConstantSpelling::json_and_python);
    }
    position_ = end + tag.size();
    state_ = State::parameter;
    return Step::on;
  }

  /// Moves behind the line end that follows the tag; false if more text must tell.
  bool skip_first_newline(std::string_view block) {
    const std::string_view text = block.substr(position_);
    if (text.empty() || text == "\r") return false;
    if (text.starts_with("\r\n")) {
      position_ += 2;
    } else if (text.starts_with("\n")) {
      position_ += 1;
    }
    value_starts_ = false;
    search_ = position_;
    return true;
  }

  void append_text(std::string_view text) {
    call_.arguments += escaped_json(text);
    position_ += text.size();
  }

  Step read_closing(std::string_view block) {
    const Step step = expect(block, closer_);
    return step == Step::on ? Step::done : step;
  }

  std::size_t position_;
  std::string closer_;
  const OfferedTools& tools_;
  const OfferedTool* tool_ = nullptr;
  ToolCall call_;
  State state_ = State::function;
  bool in_tag_ = false;
  bool has_parameter_ = false;
  std::string key_;
  bool streams_ = false;       ///< the value is a string that goes out as it grows
  bool value_starts_ = false;  ///< the line end behind the tag may still come
  std::size_t search_ = 0;
};

bool is_function_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') ||
           std::string_view("_.:-").find(letter) != std::string_view::npos ||
           static_cast<unsigned char>(letter) >= 0x80;
  });
}

std::string_view trim(std::string_view text) {
  const std::size_t begin = skip_blanks(text, 0);
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  return last == std::string_view::npos ? std::string_view() : text.substr(begin, last - begin + 1);
}

/// NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> ...
class ArgumentPairReader : public CallReader {
 public:
  ArgumentPairReader(std::size_t position, std::string closer, const OfferedTools& tools)
      : position_(position), search_(position), closer_(std::move(closer)), tools_(tools) {}

  ReadStatus read(std::string_view block, bool finished) override {
    while (true) {
      const std::size_t tag = block.find('<', search_);
      if (in_value_ && streams_) append_text(block.substr(position_, std::min(tag, block.size()) - position_));
      if (tag == std::string_view::npos) {
        search_ = block.size();
        return finished ? give_text(block.size()) : ReadStatus::more;
      }
      const Step step = in_value_ ? read_value(block, tag) : read_tag(block, tag);
      if (step == Step::more) return finished ? give_text(block.size()) : ReadStatus::more;
      if (step == Step::broken) return give_text(position_);
      if (step == Step::done) return tool_ == nullptr ? give_text(position_) : give_calls({call_}, position_);
    }
  }

  [[nodiscard]] const ToolCall* growing() const override {
    return tool_ != nullptr && !call_.arguments.empty() ? &call_ : nullptr;
  }

 private:
  enum class Step { on, more, broken, done };

  /// A tag outside of a value.
  Step read_tag(std::string_view block, std::size_t tag) {
    const std::string_view text = block.substr(tag);
    const std::string_view before = trim(block.substr(position_, tag - position_));
    bool undecided = false;
    const auto is = [&](std::string_view name) {
      const MarkerMatch match = match_tag(text, name);
      undecided = undecided || match == MarkerMatch::partial;
      return match == MarkerMatch::full;
    };
    if (is(closer_)) return end_block(before, tag);
    if (is("<arg_key>")) return begin_key(before, tag);
    if (is("</arg_key>")) return end_key(before, tag);
    if (is("<arg_value>")) return begin_value(before, tag);
    if (undecided) return Step::more;
    position_ = tag;
    return Step::broken;
  }

  Step move_to(std::size_t position) {
    position_ = position;
    search_ = position;
    return Step::on;
  }

  Step begin_key(std::string_view before, std::size_t tag) {
    if (in_key_ || has_key_ || !take_name(before)) return Step::broken;
    in_key_ = true;
    return move_to(tag + std::string_view("<arg_key>").size());
  }

  /// A closing tag without its opening one gets it back before the last word.
  Step end_key(std::string_view before, std::size_t tag) {
    if (has_key_) return Step::broken;
    if (!in_key_) {
      const std::size_t blank = before.find_last_of(" \t\r\n");
      const std::string_view rest =
          blank == std::string_view::npos ? std::string_view() : trim(before.substr(0, blank));
      if (!take_name(rest)) return Step::broken;
      before = blank == std::string_view::npos ? before : before.substr(blank + 1);
    }
    if (before.empty()) return Step::broken;
    key_ = before;
    in_key_ = false;
    has_key_ = true;
    return move_to(tag + std::string_view("</arg_key>").size());
  }

  Step begin_value(std::string_view before, std::size_t tag) {
    if (!has_key_ || !before.empty()) return Step::broken;
    in_value_ = true;
    call_.arguments += (call_.arguments.empty() ? "{\"" : ",\"") + escaped_json(key_) + "\":";
    streams_ = tool_ == nullptr || is_text_parameter(*tool_, key_);
    if (streams_) call_.arguments += "\"";
    return move_to(tag + std::string_view("<arg_value>").size());
  }

  Step read_value(std::string_view block, std::size_t tag) {
    constexpr std::string_view closing = "</arg_value>";
    const MarkerMatch match = match_tag(block.substr(tag), closing);
    if (match == MarkerMatch::partial) {
      search_ = tag;
      return Step::more;
    }
    if (match == MarkerMatch::none) {
      search_ = tag + 1;
      return Step::on;
    }
    const std::string_view rest = block.substr(position_, tag - position_);
    if (streams_) {
      append_text(rest);
      call_.arguments += "\"";
    } else {
      call_.arguments += typed_argument(*tool_, key_, rest, ConstantSpelling::json);
    }
    in_value_ = false;
    has_key_ = false;
    return move_to(tag + closing.size());
  }

  Step end_block(std::string_view before, std::size_t tag) {
    if (in_key_ || has_key_ || !take_name(before)) return Step::broken;
    call_.arguments += call_.arguments.empty() ? "{}" : "}";
    move_to(tag + closer_.size());
    return Step::done;
  }

  /// The first text outside of tags is the name; later there may be none.
  bool take_name(std::string_view text) {
    if (!name_.empty()) return text.empty();
    if (!is_function_name(text)) return false;
    name_ = text;
    tool_ = tools_.find(name_);
    if (tool_ != nullptr) call_.name = tool_->name;
    return true;
  }

  void append_text(std::string_view text) {
    call_.arguments += escaped_json(text);
    position_ += text.size();
  }

  std::size_t position_;
  std::size_t search_;
  std::string closer_;
  const OfferedTools& tools_;
  const OfferedTool* tool_ = nullptr;
  ToolCall call_;
  std::string name_;
  std::string key_;
  bool in_key_ = false;
  bool has_key_ = false;
  bool in_value_ = false;
  bool streams_ = false;  ///< the value is a string that goes out as it grows
};

/// <｜DSML｜invoke name="N"> <｜DSML｜parameter name="K" string="true"> V </｜DSML｜parameter> ... </｜DSML｜invoke>
/// ...
class DsmlReader : public CallReader {
 public:
  DsmlReader(std::size_t position, std::string closer, const OfferedTools& tools)
      : position_(position), search_(position), closer_(std::move(closer)), tools_(tools) {}

  ReadStatus read(std::string_view block, bool finished) override {
    const std::size_t end = block.find(closer_, search_);
    if (end == std::string_view::npos) {
      search_ = std::max(position_, block.size() - std::min(block.size(), closer_.size() - 1));
      return finished ? give_text(block.size()) : ReadStatus::more;
    }
    text_ = block.substr(position_, end - position_);
    at_ = 0;
    std::vector<ToolCall> calls;
    while (skip_blanks(text_, at_) < text_.size()) {
      if (!read_invocation(calls)) return give_text(end + closer_.size());
    }
    if (calls.empty()) return give_text(end + closer_.size());
    return give_calls(std::move(calls), end + closer_.size());
  }

 private:
  bool skip(std::string_view part) {
    if (!text_.substr(at_).starts_with(part)) return false;
    at_ += part.size();
    return true;
  }

  /// Text up to `end`, and moves behind `end`.
  std::optional<std::string_view> take_until(std::string_view end) {
    const std::size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) return std::nullopt;
    const std::string_view taken = text_.substr(at_, found - at_);
    at_ = found + end.size();
    return taken;
  }

  bool read_invocation(std::vector<ToolCall>& calls) {
    at_ = skip_blanks(text_, at_);
    if (!skip("<｜DSML｜invoke name=\"")) return false;
    const auto name = take_until("\">");
    const OfferedTool* tool = name ? tools_.find(*name) : nullptr;
    if (tool == nullptr) return false;
    std::string arguments = "{";
    for (at_ = skip_blanks(text_, at_); !skip("</｜DSML｜invoke>"); at_ = skip_blanks(text_, at_)) {
      if (arguments.size() > 1) arguments += ",";
      if (!read_parameter(arguments)) return false;
    }
    calls.push_back({tool->name, arguments + "}"});
    return true;
  }

  bool read_parameter(std::string& arguments) {
    if (!skip("<｜DSML｜parameter name=\"")) return false;
    const auto name = take_until("\" string=\"");
    const auto is_text = take_until("\">");
    const auto value = take_until("</｜DSML｜parameter>");
    if (!name || !is_text || !value || (*is_text != "true" && *is_text != "false")) return false;
    arguments += "\"" + escaped_json(*name) + "\":";
    if (*is_text == "true") {
      arguments += "\"" + escaped_json(*value) + "\"";
      return true;
    }
    try {
      arguments += compact_json(jinja::parse_json(*value));
    } catch (const Error&) {
      return false;  // the block is then no call
    }
    return true;
  }

  std::size_t position_;
  std::size_t search_;
  std::string closer_;
  const OfferedTools& tools_;
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::unique_ptr<CallReader> make_function_reader(std::size_t position, std::string closer, const OfferedTools& tools) {
  return std::make_unique<FunctionReader>(position, std::move(closer), tools);
}

std::unique_ptr<CallReader> make_argument_pair_reader(std::size_t position, std::string closer,
                                                      const OfferedTools& tools) {
  return std::make_unique<ArgumentPairReader>(position, std::move(closer), tools);
}

std::unique_ptr<CallReader> make_dsml_reader(std::size_t position, std::string closer, const OfferedTools& tools) {
  return std::make_unique<DsmlReader>(position, std::move(closer), tools);
}

}  // namespace tensorfold::text
