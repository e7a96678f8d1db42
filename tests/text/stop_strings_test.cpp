// Stop strings: where text ends, and what is held back.
#include "text/stop_strings.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tensorfold::text {
namespace {

struct Stopped {
  std::string text;
  std::string found;
  friend bool operator==(const Stopped&, const Stopped&) = default;
};

Stopped run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings matcher(stops);
  std::string text;
  for (const std::string& piece : pieces) text += matcher.feed(piece);
  if (!matcher.stopped()) text += matcher.finish();
  return {text, matcher.found()};
}

TEST(StopStrings, EndTheTextBeforeTheStop) {
  EXPECT_EQ(run({"END"}, {"one END two"}), (Stopped{"one ", "END"}));
  EXPECT_EQ(run({"END"}, {"one E", "N", "D two"}), (Stopped{"one ", "END"}));
  EXPECT_EQ(run({"END"}, {"one EN"}), (Stopped{"one EN", ""}));
  EXPECT_EQ(run({""}, {"text"}), (Stopped{"text", ""}));
  EXPECT_EQ(run({}, {"text"}), (Stopped{"text", ""}));
}

TEST(StopStrings, HoldBackOnlyWhatMayBeginOne) {
  StopStrings matcher({"abab", "\n\n"});
  EXPECT_EQ(matcher.feed("xab"), "x");
  EXPECT_EQ(matcher.feed("ax"), "abax");
  EXPECT_EQ(matcher.feed("ab\n"), "ab");
  EXPECT_EQ(matcher.feed("y"), "\ny");
  EXPECT_EQ(matcher.feed("aba"), "");
  EXPECT_EQ(matcher.feed("c"), "abac");
  EXPECT_EQ(matcher.feed("ab"), "");
  EXPECT_EQ(matcher.feed("ababz"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.feed("more"), "");
}

TEST(StopStrings, TheOneThatIsCompleteFirstWins) {
  EXPECT_EQ(run({"bc", "abcd"}, {"xabcd"}), (Stopped{"xa", "bc"}));
  EXPECT_EQ(run({"cd", "abcd"}, {"xabcd"}), (Stopped{"x", "abcd"}));
}

TEST(StopStrings, EveryCutGivesTheSame) {
  std::mt19937 random(std::random_device{}());
  const auto word = [&](std::size_t longest) {
    std::string text;
    const std::size_t length = random() % longest + 1;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::vector<std::string> stops = {word(5), word(5), word(3)};
    const std::string text = word(40);
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = random() % 5 + 1;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    ASSERT_EQ(run(stops, pieces), run(stops, {text}))
        << text << " with " << stops[0] << ", " << stops[1] << ", " << stops[2];
  }
}

}  // namespace
}  // namespace tensorfold::text
