// The pipeline behind every dialect: text -> stop strings -> reasoning, content and tool calls -> events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/reply_parts.h"
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
  bool call_is_forced = false;       ///< a call that is cut is no content
  /// The answer is held to a grammar: tokens tell what is reasoning, answer and call, and the answer's text is content
  /// byte for byte.
  std::optional<GrammarPlacement> grammar;
};

class ReplyText {
 public:
  explicit ReplyText(ReplyTextSettings settings);
  ReplyText(const ReplyText&) = delete;
  ReplyText& operator=(const ReplyText&) = delete;

  /// Feeds the text that a token made certain; true when a stop string ended the reply.
  bool push(int32_t token, std::string_view text, ReplySink& sink);
  /// Feeds what the last tokens still owed; likewise.
  bool push_rest(std::string_view text, ReplySink& sink);
  /// The end: everything that was held goes out. `was_cut`: the reply did not end by itself.
  void finish(bool was_cut, ReplySink& sink);
  [[nodiscard]] bool in_reasoning() const;
  /// Whether the reply closed a reasoning block that it was not in.
  [[nodiscard]] bool closed_late() const { return !plain_ && parser_.closed_late(); }
  [[nodiscard]] std::optional<std::string> stop_sequence() const;
  /// Calls that are complete.
  [[nodiscard]] size_t calls() const { return parser_.complete_calls(); }

 private:
  /// Text up to `end` (bytes of the reply so far) is one part.
  struct Stretch {
    size_t end = 0;
    ReplyPart part = ReplyPart::answer;
  };
  void note(ReplyPart part, size_t size);
  void note_token(int32_t token, std::string_view text);
  void read(std::string_view text, ReplySink& sink);
  void read_parts(std::string_view text, ReplySink& sink);
  void read_part(ReplyPart part, std::string_view text, ReplySink& sink);

  bool plain_;
  text::StopStrings stops_;
  text::ReplyParser parser_;
  // Under a grammar only.
  std::optional<GrammarPlacement> grammar_;
  std::optional<ReplyParts> parts_;
  std::optional<text::ReplyParser> reasoning_;  ///< until the answer begins
  std::deque<Stretch> stretches_;               ///< of the text that did not come through the stop strings yet
  size_t pushed_ = 0;
  size_t read_ = 0;
};

}  // namespace tensorfold::server
