// A reply's text to reasoning, content and tool calls: one pipeline for streamed and for whole replies. However the
// text is cut into pieces, the deltas joined are the same.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/call_reader.h"
#include "text/offered_tools.h"

namespace tensorfold::text {

/// The markers around a model's reasoning.
enum class ReasoningMarkers {
  none,
  think,    ///< <think> ... </think>; the opening one is mostly part of the prompt
  channel,  ///< <|channel>thought ... <channel|>, written by the reply (Gemma 4)
};

struct ReplyFormat {
  ReasoningMarkers reasoning = ReasoningMarkers::none;
};

/// The format of a model's replies, from its chat template's source and, failing that, its model_type.
ReplyFormat detect_reply_format(std::string_view template_source, std::string_view model_type);

/// Whether a rendered prompt ends inside a reasoning block, so that the reply starts there.
bool prompt_opens_reasoning(const ReplyFormat& format, std::string_view prompt);

enum class ReplyDeltaKind {
  reasoning,
  content,
  tool_call_begin,
  tool_call_arguments,
  /// The reply closes a reasoning block that nobody opened: the content until here was reasoning. Comes at most once,
  /// for those who can still take it back; no text.
  content_was_reasoning,
};

struct ReplyDelta {
  ReplyDeltaKind kind = ReplyDeltaKind::content;
  std::string text;            ///< reasoning, content, or a piece of the call's JSON arguments
  std::size_t call_index = 0;  ///< of a call, from 0 on
  std::string call_id;         ///< tool_call_begin only
  std::string call_name;       ///< tool_call_begin only
  friend bool operator==(const ReplyDelta&, const ReplyDelta&) = default;
};

struct ReplyOptions {
  bool starts_in_reasoning = false;
  /// False: the first complete call counts, later ones are dropped.
  bool parallel_tool_calls = true;
  /// True: a call's arguments go out as they grow, in every syntax where it is sure by then that this is a call. One
  /// that is cut or broken afterwards stays begun, its JSON unfinished. False: a call goes out whole, and a broken one
  /// is content.
  bool stream_arguments = false;
  /// True: a call that is cut is dropped instead of being content (it was asked for, so its markers are no text of the
  /// model's).
  bool drop_cut_calls = false;
  /// True: all of the text is reasoning, whatever it holds; who feeds knows where it ends.
  bool only_reasoning = false;
  /// The id of the call of an index; "call_0", "call_1", ... if empty.
  std::function<std::string(std::size_t call_index)> make_call_id;
};

/// Feeds on pieces of text. What it has given out never changes; it holds back an incomplete character, what may begin
/// a marker, blanks that may stand before a call, and calls that are not complete.
class ReplyParser {
 public:
  ReplyParser(ReplyFormat format, OfferedTools tools, ReplyOptions options = {});

  std::vector<ReplyDelta> feed(std::string_view piece);
  /// The rest, once the reply was cut, or has ended by itself.
  std::vector<ReplyDelta> finish(bool was_cut = true);

  [[nodiscard]] bool in_reasoning() const { return state_ == State::reasoning_start || state_ == State::reasoning; }
  /// Whether content_was_reasoning was given out.
  [[nodiscard]] bool closed_late() const { return closed_late_; }
  /// Calls that are complete. One that has begun and was cut or broken is none.
  [[nodiscard]] std::size_t complete_calls() const { return complete_calls_; }

 private:
  enum class State { reply_start, reasoning_start, reasoning, answer_start, content };

  void run(bool finished);
  bool step(bool finished);
  bool step_reply_start(bool finished);
  bool step_reasoning_start(bool finished);
  bool step_reasoning(bool finished);
  bool step_held_call(bool finished);
  bool step_answer_start(bool finished);
  bool step_content(bool finished);
  bool step_call(bool finished);
  void end_reasoning(std::size_t position, std::size_t marker_size);
  /// The nearest marker in the unread text, or where the text ends that cannot begin one.
  struct Found {
    std::size_t position = 0;
    std::size_t size = 0;  ///< of the marker; 0 if there is none
    bool is_call = false;
    bool is_stray = false;        ///< a marker to drop
    bool is_late_closer = false;  ///< closes reasoning that was taken for content
  };
  [[nodiscard]] bool may_close_late(std::size_t position) const;
  void close_late(std::size_t position, std::size_t marker_size);
  [[nodiscard]] Found find_marker(bool finished, bool in_reasoning) const;

  [[nodiscard]] std::string_view unread() const { return std::string_view(buffer_).substr(read_); }
  void emit_text(ReplyDeltaKind kind, std::string_view text);
  void emit_reasoning(std::string_view text);
  void emit_content(std::string_view text);
  void emit_calls();
  void emit_growing();
  void begin_call(const std::string& name);
  void emit_arguments(std::string_view text);

  ReplyFormat format_;
  OfferedTools tools_;
  ReplyOptions options_;
  State state_;
  std::string incomplete_;  ///< the first bytes of a character
  std::string buffer_;
  std::size_t read_ = 0;
  std::unique_ptr<CallReader> reader_;
  bool call_is_complete_ = false;  ///< a call inside reasoning waits for what follows
  bool drops_newlines_ = false;    ///< at the start of an answer behind reasoning
  std::size_t closer_search_ = 0;
  bool was_cut_ = false;
  std::string blanks_;  ///< white space that was not given out yet
  bool has_reasoning_ = false;
  bool has_content_ = false;
  bool closed_late_ = false;
  std::size_t call_count_ = 0;  ///< begun
  std::size_t complete_calls_ = 0;
  bool growing_ = false;          ///< the current call has begun
  std::size_t growing_size_ = 0;  ///< its arguments given out
  std::vector<ReplyDelta> deltas_;
};

}  // namespace tensorfold::text
