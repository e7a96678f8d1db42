#include "cli/streamed_body.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tensorfold::cli {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> events(const std::string& bytes, bool chunked, size_t step) {
  std::vector<std::string> found;
  const std::function<void(std::string_view)> on_event = [&](std::string_view data) { found.emplace_back(data); };
  StreamedBody body(chunked, on_event);
  std::string raw;
  for (size_t at = 0; at < bytes.size(); at += step) {
    raw += bytes.substr(at, step);
    body.feed(raw);
  }
  return found;
}

TEST(StreamedBody, GivesTheSameEventsHoweverTheBytesAreCut) {
  const std::string plain = ": ping\n\nevent: x\ndata: {\"a\":1}\n\ndata: two\r\n\r\ndata: [DONE]\n\ndata: unfinished";
  const std::string first = plain.substr(0, 20);
  const std::string rest = plain.substr(20);
  const auto chunk = [](const std::string& text) { return fmt::format("{:x}\r\n{}\r\n", text.size(), text); };
  for (size_t step = 1; step < plain.size() + 1; ++step) {
    EXPECT_THAT(events(plain, false, step), ElementsAre("{\"a\":1}", "two", "[DONE]")) << step;
    EXPECT_THAT(events(chunk(first) + chunk(rest) + "0\r\n\r\n", true, step), ElementsAre("{\"a\":1}", "two", "[DONE]"))
        << step;
  }
}

TEST(StreamedBody, RefusesWhatIsNoChunkedCoding) {
  EXPECT_THROW(events("xyz\r\nabc", true, 100), Error);
  EXPECT_THROW(events("ffffffffffffffff\r\nabc", true, 100), Error);
  EXPECT_THROW(events("-1\r\nabc", true, 100), Error);
  EXPECT_THROW(events(std::string(5000, '1'), true, 100), Error);
}

}  // namespace
}  // namespace tensorfold::cli
