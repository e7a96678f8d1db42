// Readers of tool-call blocks, one a syntax. A reader sees the text from the block's opening marker on, as far as it
// has arrived, and goes on where it stopped, so a long call costs time in proportion to its length.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/offered_tools.h"

namespace tensorfold::text {

/// A call that was read: the tool in its offered spelling and compact JSON arguments.
struct ToolCall {
  std::string name;
  std::string arguments;
  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

enum class ReadStatus {
  more,   ///< undecided: more text is needed
  calls,  ///< calls() are the block's calls, end() is where it ends
  text,   ///< no call: everything up to end() is ordinary text
};

class CallReader {
 public:
  CallReader() = default;
  virtual ~CallReader() = default;
  CallReader(const CallReader&) = delete;
  CallReader& operator=(const CallReader&) = delete;

  /// `block` starts at the opening marker and only grows between calls. `finished` says that no more will come.
  virtual ReadStatus read(std::string_view block, bool finished) = 0;
  /// A call that has begun for certain and whose arguments only grow; nullptr if this reader cannot tell yet.
  [[nodiscard]] virtual const ToolCall* growing() const { return nullptr; }
  [[nodiscard]] const std::vector<ToolCall>& calls() const { return calls_; }
  [[nodiscard]] std::size_t end() const { return end_; }

 protected:
  ReadStatus give_text(std::size_t end) {
    end_ = end;
    return ReadStatus::text;
  }
  ReadStatus give_calls(std::vector<ToolCall> calls, std::size_t end) {
    calls_ = std::move(calls);
    end_ = end;
    return ReadStatus::calls;
  }

 private:
  std::vector<ToolCall> calls_;
  std::size_t end_ = 0;
};

/// How much of an opening marker stands at a place.
enum class MarkerMatch { none, partial, full };

struct CallMarker {
  MarkerMatch match = MarkerMatch::none;
  std::size_t size = 0;  ///< of a full marker
};

/// The opening marker of a tool call at the start of `text`, which begins with '<'.
CallMarker match_call_marker(std::string_view text);

/// What closes the block that `opener`, a full marker, opens.
std::string call_closer(std::string_view opener);

/// The reader for the block that starts with a full marker. `tools` must live longer.
std::unique_ptr<CallReader> make_call_reader(std::string_view block, std::size_t marker_size,
                                             const OfferedTools& tools);

/// Reads an answer that is nothing but a call as JSON, perhaps in a code fence.
std::unique_ptr<CallReader> make_bare_json_reader(const OfferedTools& tools);

// The readers of one syntax each; `position` is behind the opening marker.

/// <function=NAME> with <parameter=KEY> values, up to `closer`.
std::unique_ptr<CallReader> make_function_reader(std::size_t position, std::string closer, const OfferedTools& tools);
/// NAME with <arg_key> and <arg_value> pairs, up to `closer`.
std::unique_ptr<CallReader> make_argument_pair_reader(std::size_t position, std::string closer,
                                                      const OfferedTools& tools);
/// A JSON object or list of them, up to `closer`.
std::unique_ptr<CallReader> make_json_reader(std::size_t position, std::string closer, const OfferedTools& tools);
/// call:NAME{key:value} up to <tool_call|>.
std::unique_ptr<CallReader> make_gemma_reader(std::size_t position, const OfferedTools& tools);
/// DSML invocations up to `closer`.
std::unique_ptr<CallReader> make_dsml_reader(std::size_t position, std::string closer, const OfferedTools& tools);

/// Whether `text` begins with `tag`, in any case of letters: fully, as far as it goes, or not.
MarkerMatch match_tag(std::string_view text, std::string_view tag);
/// Where `tag` first stands in `text` from `from` on, in any case of letters.
std::size_t find_tag(std::string_view text, std::string_view tag, std::size_t from);
/// The first place from `at` on that is not white space.
std::size_t skip_blanks(std::string_view text, std::size_t at);

}  // namespace tensorfold::text
