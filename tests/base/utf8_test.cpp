#include "base/utf8.h"

#include <random>

#include <gtest/gtest.h>

namespace tensorfold {
namespace {

TEST(Utf8, EveryCodePointIsWrittenAndReadBack) {
  for (char32_t point = 0; point < 0x110000; ++point) {
    std::string text;
    append_utf8(text, point);
    const bool surrogate = point >= 0xD800 && point < 0xE000;
    std::size_t position = 0;
    ASSERT_EQ(next_code_point(text, position), surrogate ? replacement_character : point);
    ASSERT_EQ(position, text.size());
    ASSERT_TRUE(is_valid_utf8(text));
  }
}

// Examples of the Unicode standard's section 3.9, "U+FFFD substitution of maximal subparts".
TEST(Utf8, BadBytesAreReplacedByMaximalSubparts) {
  const std::string f = std::string(replacement_utf8);
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), f + f + f + f + f + f + f + f + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), f + f + f + f + f + f + f + f + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), f + f + f + f + f + "A" + f + f + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), f + f + f + f + "A");
}

TEST(Utf8, AnUnfinishedCharacterIsWhatMoreBytesCouldFinish) {
  const std::string text = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::string head = text.substr(0, cut);
    const std::size_t unfinished = incomplete_utf8_suffix(head);
    EXPECT_TRUE(is_valid_utf8(head.substr(0, cut - unfinished))) << cut;
    EXPECT_EQ(unfinished == 0, is_valid_utf8(head)) << cut;
  }
  EXPECT_EQ(incomplete_utf8_suffix("\xE0\x80"), 0U);  // cannot become valid
  EXPECT_EQ(incomplete_utf8_suffix("\xFF"), 0U);
}

TEST(Utf8, RepairedTextIsValidAndValidTextStays) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (auto i = random() % 40; i > 0; --i)
      bytes.push_back(static_cast<char>(random() % 4 == 0 ? random() % 128 : random() % 256));
    const std::string repaired = replace_invalid_utf8(bytes);
    EXPECT_TRUE(is_valid_utf8(repaired));
    EXPECT_EQ(replace_invalid_utf8(repaired), repaired);
    EXPECT_EQ(repaired == bytes, is_valid_utf8(bytes));
  }
}

}  // namespace
}  // namespace tensorfold
