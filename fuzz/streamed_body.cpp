// Any bytes as a streamed answer, cut as the first byte says: refused with one Error, or the same events as in one
// piece.
#include "cli/streamed_body.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

using tensorfold::cli::StreamedBody;

namespace {

/// The events of `bytes` in pieces of `step`, and whether all of it could be read.
std::pair<std::vector<std::string>, bool> events_of(const std::string& bytes, bool chunked, size_t step) {
  std::vector<std::string> events;
  const std::function<void(std::string_view)> on_event = [&](std::string_view data) { events.emplace_back(data); };
  StreamedBody body(chunked, on_event);
  std::string raw;
  try {
    for (size_t at = 0; at < bytes.size() && !body.done(); at += step) {
      raw += bytes.substr(at, step);
      body.feed(raw);
    }
  } catch (const tensorfold::Error&) {
    return {events, false};
  }
  return {events, true};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool chunked = (data[0] & 1U) != 0;
  const size_t step = 1 + data[0] / 2 % 16;
  const auto whole = events_of(bytes, chunked, bytes.size() + 1);
  const auto pieces = events_of(bytes, chunked, step);
  if (whole.second && pieces.second) tensorfold::check(whole.first == pieces.first, "events depend on the cut");
  return 0;
}
