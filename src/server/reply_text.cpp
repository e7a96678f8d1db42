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
  options.starts_in_reasoning = settings.starts_in_reasoning;
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
      parser_(settings.format, settings.tools, parser_options(settings)) {}

void ReplyText::read(std::string_view text, ReplySink& sink) {
  if (text.empty()) return;
  if (plain_) {
    sink.on_content(text);
  } else {
    report(parser_.feed(text), sink);
  }
}

bool ReplyText::push(std::string_view text, ReplySink& sink) {
  read(stops_.feed(text), sink);
  return stops_.stopped();
}

void ReplyText::finish(ReplySink& sink) {
  if (!stops_.stopped()) read(stops_.finish(), sink);
  if (!plain_) report(parser_.finish(), sink);
}

std::optional<std::string> ReplyText::stop_sequence() const {
  if (!stops_.stopped()) return std::nullopt;
  return stops_.found();
}

}  // namespace tensorfold::server
