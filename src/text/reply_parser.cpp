#include "text/reply_parser.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"

namespace tensorfold::text {

namespace {

constexpr std::string_view blank_letters = " \t\r\n";

std::string_view opening_marker(ReasoningMarkers markers) {
  switch (markers) {
    case ReasoningMarkers::think:
      return "<think>";
    case ReasoningMarkers::channel:
      return "<|channel>";
    case ReasoningMarkers::none:
      break;
  }
  return {};
}

std::string_view closing_marker(ReasoningMarkers markers) {
  switch (markers) {
    case ReasoningMarkers::think:
      return "</think>";
    case ReasoningMarkers::channel:
      return "<channel|>";
    case ReasoningMarkers::none:
      break;
  }
  return {};
}

constexpr std::string_view channel_name = "thought";
/// Gemma's markers that mean nothing behind a call.
constexpr std::array<std::string_view, 2> stray_markers = {"<tool_call|>", "<|tool_response>"};

MarkerMatch match_exactly(std::string_view text, std::string_view marker) {
  if (marker.empty()) return MarkerMatch::none;
  if (text.starts_with(marker)) return MarkerMatch::full;
  return marker.starts_with(text) ? MarkerMatch::partial : MarkerMatch::none;
}

}  // namespace

ReplyFormat detect_reply_format(std::string_view template_source, std::string_view model_type) {
  const auto mentions = [&](std::string_view marker) { return template_source.find(marker) != std::string_view::npos; };
  if (mentions("<|channel>") || mentions("<channel|>") || model_type == "gemma4") return {ReasoningMarkers::channel};
  static constexpr std::array<std::string_view, 4> thinking_models = {"qwen3_5", "qwen4_exp", "nemotron_h",
                                                                      "glm5_next"};
  const bool thinks = std::find(thinking_models.begin(), thinking_models.end(), model_type) != thinking_models.end();
  if (mentions("<think>") || mentions("</think>") || thinks) return {ReasoningMarkers::think};
  return {};
}

bool prompt_opens_reasoning(const ReplyFormat& format, std::string_view prompt) {
  const std::string_view opener = opening_marker(format.reasoning);
  if (opener.empty()) return false;
  const std::size_t last = prompt.find_last_not_of(blank_letters);
  std::string_view tail = prompt.substr(0, last == std::string_view::npos ? 0 : last + 1);
  if (format.reasoning == ReasoningMarkers::channel && tail.ends_with(channel_name)) {
    tail.remove_suffix(channel_name.size());
  }
  return tail.ends_with(opener);
}

ReplyParser::ReplyParser(ReplyFormat format, OfferedTools tools, ReplyOptions options)
    : format_(format),
      tools_(std::move(tools)),
      options_(std::move(options)),
      state_(options_.starts_in_reasoning || options_.only_reasoning ? State::reasoning_start
             : format_.reasoning != ReasoningMarkers::none           ? State::reply_start
                                                                     : State::answer_start) {}

std::vector<ReplyDelta> ReplyParser::feed(std::string_view piece) {
  incomplete_.append(piece);
  const std::size_t tail = incomplete_utf8_suffix(incomplete_);
  buffer_ += replace_invalid_utf8(std::string_view(incomplete_).substr(0, incomplete_.size() - tail));
  incomplete_.erase(0, incomplete_.size() - tail);
  run(false);
  return std::exchange(deltas_, {});
}

std::vector<ReplyDelta> ReplyParser::finish(bool was_cut) {
  was_cut_ = was_cut;
  buffer_ += replace_invalid_utf8(std::exchange(incomplete_, {}));
  run(true);
  if (call_count_ == 0 && !blanks_.empty() && state_ == State::content) {
    emit_text(ReplyDeltaKind::content, std::exchange(blanks_, {}));
  }
  return std::exchange(deltas_, {});
}

void ReplyParser::run(bool finished) {
  while (step(finished)) {
  }
  constexpr std::size_t keep_read = 4096;
  if (read_ > keep_read && !reader_) {
    // The last byte that was read stays: it tells whether a marker stands in quotes.
    const std::size_t gone = read_ - 1;
    buffer_.erase(0, gone);
    closer_search_ = closer_search_ > gone ? closer_search_ - gone : 0;
    read_ = 1;
  }
}

bool ReplyParser::step(bool finished) {
  switch (state_) {
    case State::reply_start:
      return step_reply_start(finished);
    case State::reasoning_start:
      return step_reasoning_start(finished);
    case State::reasoning:
      return reader_ ? step_held_call(finished) : step_reasoning(finished);
    case State::answer_start:
      return step_answer_start(finished);
    case State::content:
      return reader_ ? step_call(finished) : step_content(finished);
  }
  return false;
}

/// A reply may begin with the marker that opens its reasoning.
bool ReplyParser::step_reply_start(bool finished) {
  const std::size_t begin = skip_blanks(unread(), 0);
  const MarkerMatch match = match_exactly(unread().substr(begin), opening_marker(format_.reasoning));
  if (match == MarkerMatch::partial && !finished) return false;
  state_ = match == MarkerMatch::full ? State::reasoning_start : State::answer_start;
  return true;
}

/// Drops a (repeated) opening marker, the channel's name and blanks.
bool ReplyParser::step_reasoning_start(bool finished) {
  const std::string_view opener = opening_marker(format_.reasoning);
  std::size_t at = skip_blanks(unread(), 0);
  const MarkerMatch match = match_exactly(unread().substr(at), opener);
  if (match == MarkerMatch::partial && !finished) return false;
  if (match == MarkerMatch::full) {
    at = skip_blanks(unread(), at + opener.size());
    if (format_.reasoning == ReasoningMarkers::channel) {
      const MarkerMatch name = match_exactly(unread().substr(at), channel_name);
      if (name == MarkerMatch::partial && !finished) return false;
      if (name == MarkerMatch::full) at += channel_name.size();
    }
  }
  read_ += at;
  state_ = State::reasoning;
  return true;
}

ReplyParser::Found ReplyParser::find_marker(bool finished, bool in_reasoning) const {
  const std::string_view text = unread();
  for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::string_view rest = text.substr(at);
    bool partial = false;
    const auto is = [&](std::string_view marker) {
      const MarkerMatch match = match_exactly(rest, marker);
      partial = partial || match == MarkerMatch::partial;
      return match == MarkerMatch::full;
    };
    if (options_.only_reasoning) {
      continue;
    } else if (in_reasoning) {
      const std::string_view closer = closing_marker(format_.reasoning);
      if (is(closer)) return {at, closer.size(), false, false, false};
    } else if (format_.reasoning == ReasoningMarkers::channel) {
      const std::string_view opener = opening_marker(format_.reasoning);
      if (is(opener)) return {at, opener.size(), false, false, false};
    } else if (may_close_late(at)) {
      const std::string_view closer = closing_marker(format_.reasoning);
      if (is(closer)) return {at, closer.size(), false, false, true};
    }
    if (!tools_.empty()) {
      const CallMarker call = match_call_marker(rest);
      if (call.match == MarkerMatch::full) return {at, call.size, true, false, false};
      partial = partial || call.match == MarkerMatch::partial;
      for (const std::string_view stray : stray_markers) {
        if (complete_calls_ > 0 && !in_reasoning && is(stray)) return {at, stray.size(), false, true, false};
      }
    }
    if (partial && !finished) return {at, 0, false, false, false};
  }
  return {text.size(), 0, false, false, false};
}

bool ReplyParser::step_reasoning(bool finished) {
  const Found found = find_marker(finished, true);
  emit_reasoning(unread().substr(0, found.position));
  if (found.size == 0) {
    read_ += found.position;
    return false;
  }
  if (!found.is_call) {
    end_reasoning(found.position, found.size);
    return true;
  }
  read_ += found.position;
  closer_search_ = read_;
  reader_ = make_call_reader(unread(), found.size, tools_);
  return true;
}

void ReplyParser::end_reasoning(std::size_t position, std::size_t marker_size) {
  read_ += position + marker_size;
  blanks_.clear();
  drops_newlines_ = true;
  state_ = has_content_ || call_count_ > 0 ? State::content : State::answer_start;
}

/// A reply whose prompt closed the block, or never opened it, may reason all the same and then close what nobody
/// opened. A marker in quotes is spoken of.
bool ReplyParser::may_close_late(std::size_t position) const {
  if (format_.reasoning != ReasoningMarkers::think || options_.starts_in_reasoning || closed_late_) return false;
  if (has_reasoning_ || call_count_ > 0) return false;
  const std::size_t at = read_ + position;
  return at == 0 || std::string_view("`\"'").find(buffer_[at - 1]) == std::string_view::npos;
}

void ReplyParser::close_late(std::size_t position, std::size_t marker_size) {
  closed_late_ = true;
  has_content_ = false;
  ReplyDelta delta;
  delta.kind = ReplyDeltaKind::content_was_reasoning;
  deltas_.push_back(std::move(delta));
  end_reasoning(position, marker_size);
}

/// A call inside reasoning: a mention if the reasoning is closed later, a call if the reply ends without that.
bool ReplyParser::step_held_call(bool finished) {
  const std::string_view closer = closing_marker(format_.reasoning);
  const std::size_t end = closer.empty() ? std::string::npos : buffer_.find(closer, closer_search_);
  if (end != std::string::npos) {
    reader_.reset();
    call_is_complete_ = false;
    emit_reasoning(unread().substr(0, end - read_));
    end_reasoning(end - read_, closer.size());
    return true;
  }
  closer_search_ = std::max(read_, buffer_.size() - std::min(buffer_.size(), closer.size()));
  if (!call_is_complete_) {
    const ReadStatus status = reader_->read(unread(), finished);
    if (status == ReadStatus::more) return false;
    if (status == ReadStatus::text) {
      emit_reasoning(unread().substr(0, reader_->end()));
      read_ += reader_->end();
      reader_.reset();
      return true;
    }
    call_is_complete_ = true;
  }
  if (!finished) return false;
  blanks_.clear();
  state_ = State::content;
  emit_calls();
  read_ += reader_->end();
  reader_.reset();
  return true;
}

/// An answer may be nothing but a call as JSON.
bool ReplyParser::step_answer_start(bool finished) {
  if (drops_newlines_) {
    const std::size_t begin = std::min(unread().find_first_not_of("\r\n"), unread().size());
    read_ += begin;
    if (unread().empty() && !finished) return false;
    drops_newlines_ = false;
  }
  if (tools_.empty()) {
    state_ = State::content;
    return true;
  }
  if (!reader_) reader_ = make_bare_json_reader(tools_);
  const ReadStatus status = reader_->read(unread(), finished);
  if (status == ReadStatus::more) return false;
  if (status == ReadStatus::calls) {
    emit_calls();
    read_ += reader_->end();
  }
  reader_.reset();
  state_ = State::content;
  return true;
}

bool ReplyParser::step_content(bool finished) {
  if (drops_newlines_) {
    read_ += std::min(unread().find_first_not_of("\r\n"), unread().size());
    if (unread().empty()) return false;
    drops_newlines_ = false;
  }
  const Found found = find_marker(finished, false);
  emit_content(unread().substr(0, found.position));
  if (found.is_late_closer) {
    close_late(found.position, found.size);
    return true;
  }
  read_ += found.position;
  if (found.size == 0) return false;
  if (found.is_call) {
    reader_ = make_call_reader(unread(), found.size, tools_);
  } else if (found.is_stray) {
    read_ += found.size;
  } else {
    state_ = State::reasoning_start;
  }
  return true;
}

bool ReplyParser::step_call(bool finished) {
  const ReadStatus status = reader_->read(unread(), finished);
  if (options_.stream_arguments && options_.parallel_tool_calls) emit_growing();
  if (status == ReadStatus::more) return false;
  if (status == ReadStatus::calls) {
    emit_calls();
  } else if (!growing_ && !(finished && was_cut_ && options_.drop_cut_calls)) {
    emit_content(unread().substr(0, reader_->end()));
  }
  growing_ = false;
  read_ += reader_->end();
  reader_.reset();
  return true;
}

void ReplyParser::emit_text(ReplyDeltaKind kind, std::string_view text) {
  if (text.empty()) return;
  if (!deltas_.empty() && deltas_.back().kind == kind && kind != ReplyDeltaKind::tool_call_arguments) {
    deltas_.back().text += text;
    return;
  }
  ReplyDelta delta;
  delta.kind = kind;
  delta.text = text;
  deltas_.push_back(std::move(delta));
}

void ReplyParser::emit_reasoning(std::string_view text) {
  // Blanks go out only when text follows, so that reasoning has none at its ends.
  const std::size_t last = text.find_last_not_of(blank_letters);
  if (last == std::string_view::npos) {
    if (has_reasoning_) blanks_ += text;
    return;
  }
  if (!has_reasoning_) text.remove_prefix(text.find_first_not_of(blank_letters));
  const std::size_t solid = text.find_last_not_of(blank_letters) + 1;
  emit_text(ReplyDeltaKind::reasoning, std::exchange(blanks_, {}));
  emit_text(ReplyDeltaKind::reasoning, text.substr(0, solid));
  blanks_ = text.substr(solid);
  has_reasoning_ = true;
}

void ReplyParser::emit_content(std::string_view text) {
  if (tools_.empty()) return emit_text(ReplyDeltaKind::content, text);
  const std::size_t last = text.find_last_not_of(blank_letters);
  if (last == std::string_view::npos) {
    blanks_ += text;
    return;
  }
  if (!has_content_ && call_count_ > 0) {
    blanks_.clear();
    text.remove_prefix(text.find_first_not_of(blank_letters));
  }
  const std::size_t solid = text.find_last_not_of(blank_letters) + 1;
  emit_text(ReplyDeltaKind::content, std::exchange(blanks_, {}));
  emit_text(ReplyDeltaKind::content, text.substr(0, solid));
  blanks_ = text.substr(solid);
  has_content_ = true;
}

void ReplyParser::begin_call(const std::string& name) {
  ReplyDelta delta;
  delta.kind = ReplyDeltaKind::tool_call_begin;
  delta.call_index = call_count_;
  delta.call_id = options_.make_call_id ? options_.make_call_id(call_count_) : "call_" + std::to_string(call_count_);
  delta.call_name = name;
  deltas_.push_back(std::move(delta));
  ++call_count_;
}

void ReplyParser::emit_arguments(std::string_view text) {
  if (text.empty()) return;
  ReplyDelta delta;
  delta.kind = ReplyDeltaKind::tool_call_arguments;
  delta.text = text;
  delta.call_index = call_count_ - 1;
  deltas_.push_back(std::move(delta));
}

void ReplyParser::emit_growing() {
  const ToolCall* call = reader_->growing();
  if (call == nullptr) return;
  if (!growing_) {
    begin_call(call->name);
    growing_ = true;
    growing_size_ = 0;
  }
  emit_arguments(std::string_view(call->arguments).substr(growing_size_));
  growing_size_ = call->arguments.size();
}

void ReplyParser::emit_calls() {
  if (growing_) {
    ++complete_calls_;
    return;
  }
  for (const ToolCall& call : reader_->calls()) {
    if (call_count_ > 0 && !options_.parallel_tool_calls) return;
    ++complete_calls_;
    begin_call(call.name);
    emit_arguments(call.arguments);
  }
}

}  // namespace tensorfold::text
