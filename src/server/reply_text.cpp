#include "server/reply_text.h"

#include <utility>

#include "server/identifier.h"

namespace tensorfold::server {
namespace {

void report(const std::vector<text::ReplyDelta>& deltas, ReplySink& sink) {
  for (const text::ReplyDelta& delta : deltas) {
    switch (delta.kind) {
      case text::ReplyDeltaKind::reasoning:
        sink.on_reasoning(delta.text);
        break;
      case text::ReplyDeltaKind::content:
        sink.on_content(delta.text);
        break;
      case text::ReplyDeltaKind::content_was_reasoning:
        sink.on_content_was_reasoning();
        break;
      case text::ReplyDeltaKind::tool_call_begin:
        sink.on_call(delta.call_index, delta.call_id, delta.call_name);
        break;
      case text::ReplyDeltaKind::tool_call_arguments:
        sink.on_arguments(delta.call_index, delta.text);
        break;
    }
  }
}

text::ReplyOptions parser_options(const ReplyTextSettings& settings) {
  text::ReplyOptions options;
  options.starts_in_reasoning = settings.starts_in_reasoning && !settings.grammar;
  options.parallel_tool_calls = settings.parallel_calls;
  options.stream_arguments = settings.stream_arguments;
  options.drop_cut_calls = settings.call_is_forced;
  options.make_call_id = [](size_t) { return new_id("call_"); };
  return options;
}

}  // namespace

ReplyText::ReplyText(ReplyTextSettings settings)
    : plain_(settings.plain),
      stops_(settings.stops),
      parser_(settings.grammar ? text::ReplyFormat() : settings.format, settings.tools, parser_options(settings)),
      grammar_(std::move(settings.grammar)) {
  if (!grammar_) return;
  parts_.emplace(*grammar_);
  text::ReplyOptions options;
  options.only_reasoning = true;
  reasoning_.emplace(settings.format, text::OfferedTools(), options);
}

bool ReplyText::in_reasoning() const {
  if (parts_) return parts_->now() == ReplyPart::reasoning;
  return !plain_ && parser_.in_reasoning();
}

void ReplyText::note(ReplyPart part, size_t size) {
  if (size == 0) return;
  pushed_ += size;
  if (!stretches_.empty() && stretches_.back().part == part) {
    stretches_.back().end = pushed_;
  } else {
    stretches_.push_back({pushed_, part});
  }
}

/// A marker's text may come with the rest of a character that the tokens before it left incomplete.
void ReplyText::note_token(int32_t token, std::string_view text) {
  const ReplyPart before = parts_->now();
  const ReplyPart part = parts_->step(token);
  size_t owed = 0;
  if (part == ReplyPart::marker && before == ReplyPart::reasoning) {
    const size_t marker = text.rfind('<');
    owed = marker == std::string_view::npos ? 0 : marker;
  }
  note(before, owed);
  note(part, text.size() - owed);
}

void ReplyText::read_part(ReplyPart part, std::string_view text, ReplySink& sink) {
  if (part == ReplyPart::marker) return;
  if (part == ReplyPart::reasoning) return report(reasoning_->feed(text), sink);
  if (reasoning_) {
    report(reasoning_->finish(), sink);
    reasoning_.reset();
  }
  if (part == ReplyPart::answer) {
    sink.on_content(text);
  } else {
    report(parser_.feed(text), sink);
  }
}

void ReplyText::read_parts(std::string_view text, ReplySink& sink) {
  while (!text.empty()) {
    const Stretch stretch = stretches_.front();
    const std::string_view piece = text.substr(0, stretch.end - read_);
    read_ += piece.size();
    if (read_ == stretch.end) stretches_.pop_front();
    text.remove_prefix(piece.size());
    read_part(stretch.part, piece, sink);
  }
}

void ReplyText::read(std::string_view text, ReplySink& sink) {
  if (text.empty()) return;
  if (plain_) {
    sink.on_content(text);
  } else if (parts_) {
    read_parts(text, sink);
  } else {
    report(parser_.feed(text), sink);
  }
}

bool ReplyText::push(int32_t token, std::string_view text, ReplySink& sink) {
  if (parts_) note_token(token, text);
  read(stops_.feed(text), sink);
  return stops_.stopped();
}

bool ReplyText::push_rest(std::string_view text, ReplySink& sink) {
  if (parts_) note(parts_->now(), text.size());
  read(stops_.feed(text), sink);
  return stops_.stopped();
}

void ReplyText::finish(bool was_cut, ReplySink& sink) {
  if (!stops_.stopped()) read(stops_.finish(), sink);
  if (reasoning_) report(reasoning_->finish(), sink);
  if (!plain_) report(parser_.finish(was_cut), sink);
}

std::optional<std::string> ReplyText::stop_sequence() const {
  if (!stops_.stopped()) return std::nullopt;
  return stops_.found();
}

}  // namespace tensorfold::server
