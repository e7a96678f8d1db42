// Any reply, in any cut: the joined deltas are those of the whole text. The first bytes choose options and cuts.
#include "text/reply_parser.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/jinja/json_value.h"

namespace {

using namespace tensorfold::text;

const OfferedTools& tools() {
  static const OfferedTools offered(jinja::parse_json(R"([{"type": "function", "function": {"name": "f", "parameters":
      {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}, "l": {"type": "array"}}}}}, {"name": "now"}])"));
  return offered;
}

/// Reasoning, content and calls, joined.
std::vector<std::string> join(ReplyParser& parser, std::string_view text, std::size_t step) {
  std::vector<std::string> joined(2);
  const auto add = [&](const std::vector<ReplyDelta>& deltas) {
    for (const ReplyDelta& delta : deltas) {
      if (delta.kind == ReplyDeltaKind::content_was_reasoning) joined[1] += "|";
      if (delta.kind == ReplyDeltaKind::tool_call_begin) joined.push_back(delta.call_name + ":");
      const bool is_call = delta.kind == ReplyDeltaKind::tool_call_arguments;
      (is_call ? joined.back() : joined[delta.kind == ReplyDeltaKind::reasoning ? 0 : 1]) += delta.text;
    }
  };
  for (std::size_t at = 0; at < text.size(); at += step) add(parser.feed(text.substr(at, step)));
  add(parser.finish());
  return joined;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  ReplyOptions options;
  options.starts_in_reasoning = (data[0] & 1U) != 0;
  options.parallel_tool_calls = (data[0] & 2U) != 0;
  options.stream_arguments = (data[0] & 4U) != 0;
  const ReplyFormat format = {static_cast<ReasoningMarkers>((data[0] >> 3U) % 3)};
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  ReplyParser whole(format, tools(), options);
  ReplyParser cut(format, tools(), options);
  const auto expected = join(whole, text, text.size() + 1);
  tensorfold::check(join(cut, text, data[1] % 16 + 1) == expected, "a cut changes the reply");
  return 0;
}
