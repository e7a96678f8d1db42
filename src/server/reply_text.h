// The pipeline behind every dialect: text -> stop strings -> reasoning, content and tool calls -> events.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/reply_sink.h"
#include "text/offered_tools.h"
#include "text/reply_parser.h"
#include "text/stop_strings.h"

namespace tensorfold::server {

struct ReplyTextSettings {
  std::vector<std::string> stops;
  bool plain = false;  ///< no markers are read: everything is content
  text::ReplyFormat format;
  text::OfferedTools tools;
  bool starts_in_reasoning = false;  ///< the prompt opened the block
  bool parallel_calls = true;        ///< false: at most one call
  bool stream_arguments = false;     ///< arguments go out as they grow
  bool call_is_forced = false;       ///< a call that the limit cuts is no content
};

class ReplyText {
 public:
  explicit ReplyText(ReplyTextSettings settings);
  /// Feeds text; true when a stop string ended the reply.
  bool push(std::string_view text, ReplySink& sink);
  /// The end: everything that was held goes out.
  void finish(ReplySink& sink);
  [[nodiscard]] bool in_reasoning() const { return !plain_ && parser_.in_reasoning(); }
  /// Whether the reply closed a reasoning block that it was not in.
  [[nodiscard]] bool closed_late() const { return !plain_ && parser_.closed_late(); }
  [[nodiscard]] std::optional<std::string> stop_sequence() const;
  /// Calls that are complete.
  [[nodiscard]] size_t calls() const { return parser_.complete_calls(); }

 private:
  void read(std::string_view text, ReplySink& sink);
  bool plain_;
  text::StopStrings stops_;
  text::ReplyParser parser_;
};

}  // namespace tensorfold::server
