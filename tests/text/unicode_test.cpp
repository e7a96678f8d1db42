#include "text/unicode.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "text/tokenizer_regex.h"
#include "text/unicode_normalization.h"

#ifdef TENSORFOLD_TEST_ICU
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#endif

namespace tensorfold::text {
namespace {

bool is_surrogate(char32_t point) { return point >= 0xD800 && point < 0xE000; }

std::string utf8(std::initializer_list<char32_t> points) {
  std::string text;
  for (const char32_t point : points) append_utf8(text, point);
  return text;
}

// Regular expressions see our Unicode version, whatever version PCRE2 has: every category, every code point.
TEST(Unicode, RegularExpressionsSeeOurCategories) {
  std::string all;
  std::vector<char32_t> points;
  for (char32_t point = 0; point < 0x110000; ++point) {
    if (is_surrogate(point)) continue;
    append_utf8(all, point);
    points.push_back(point);
  }
  const std::string subject = regex_subject(all).value_or(all);
  const char* names[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
                         "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
  for (std::size_t value = 0; value < std::size(names); ++value) {
    std::vector<RegexStretch> stretches;
    Regex("\\p{" + std::string(names[value]) + "}+").cut(subject, stretches);
    std::size_t index = 0;
    std::size_t wrong = 0;
    for (const RegexStretch& stretch : stretches) {
      for (std::size_t position = stretch.begin; position < stretch.end; ++index) {
        next_code_point(all, position);
        wrong += (category(points[index]) == static_cast<Category>(value)) != stretch.is_match ? 1 : 0;
      }
    }
    EXPECT_EQ(wrong, 0U) << names[value];
  }
}

TEST(Unicode, BlanksAndWordsAreTheLibrarys) {
  std::size_t blanks = 0;
  for (char32_t point = 0; point < 0x110000; ++point) blanks += is_whitespace(point) ? 1 : 0;
  EXPECT_EQ(blanks, 25U);  // the property White_Space has 25 members
  EXPECT_FALSE(is_whitespace(0x180E));
  EXPECT_FALSE(is_whitespace(0x200B));
  EXPECT_TRUE(is_word('_') && is_word(0x0301) && is_word(0x200D) && is_word(0x24B6) && !is_word('-') && !is_word(0xBD));
}

// U+11938 joined Unicode in 13.0: regular expressions know it, normalisation (9.0) does not decompose it.
TEST(Unicode, NormalisationUsesUnicode9) {
  EXPECT_EQ(category(0x11938), Category::Mc);
  std::string text = utf8({0x11938, 0x11935, 0x11930});
  const std::string before = text;
  normalize(NormalizationForm::nfd, text);
  normalize(NormalizationForm::nfc, text);
  EXPECT_EQ(text, before);
}

TEST(Unicode, LowerCaseIsFullAndLooksAtNoNeighbours) {
  EXPECT_EQ(lower_case("ÀÉ\u0130Σ"), "àéi\u0307σ");
  EXPECT_EQ(lower_case("\uA7CE"), "\uA7CF");  // new in 17.0
}

std::string random_text(std::mt19937& random) {
  const std::vector<std::pair<char32_t, char32_t>> ranges = {
      {0x20, 0x7F},     {0xA0, 0x250},      {0x300, 0x370},    {0x590, 0x6FF},   {0x900, 0xDFF},
      {0xF00, 0xFFF},   {0x1100, 0x1200},   {0x1E00, 0x2000},  {0x3040, 0x3100}, {0xAC00, 0xAC40},
      {0xF900, 0xFB50}, {0x11080, 0x111FF}, {0x1D150, 0x1D1FF}};
  std::string text;
  for (auto i = random() % 30; i > 0; --i) {
    const auto& [low, high] = ranges[random() % ranges.size()];
    append_utf8(text, low + static_cast<char32_t>(random() % (high - low)));
  }
  return text;
}

#ifdef TENSORFOLD_TEST_ICU
// ICU knows a later Unicode; for text made of characters that 9.0 had, the results must be equal.
TEST(Unicode, NormalisationEqualsIcuOnOldCharacters) {
  UErrorCode status = U_ZERO_ERROR;
  const std::vector<std::pair<NormalizationForm, const icu::Normalizer2*>> forms = {
      {NormalizationForm::nfc, icu::Normalizer2::getNFCInstance(status)},
      {NormalizationForm::nfd, icu::Normalizer2::getNFDInstance(status)},
      {NormalizationForm::nfkc, icu::Normalizer2::getNFKCInstance(status)},
      {NormalizationForm::nfkd, icu::Normalizer2::getNFKDInstance(status)}};
  const auto is_old = [](const std::string& text) {
    for (std::size_t position = 0; position < text.size();) {
      UVersionInfo age;
      u_charAge(static_cast<UChar32>(next_code_point(text, position)), age);
      if (age[0] == 0 || age[0] > 9) return false;
    }
    return true;
  };
  const auto compare = [&](const std::string& text) {
    for (const auto& [form, oracle] : forms) {
      std::string expected;
      oracle->normalize(icu::UnicodeString::fromUTF8(text), status).toUTF8String(expected);
      std::string ours = text;
      normalize(form, ours);
      ASSERT_EQ(ours, expected) << "form " << static_cast<int>(form);
    }
  };
  for (char32_t point = 0; point < 0x110000; ++point) {
    if (!is_surrogate(point) && is_old(utf8({point}))) compare(utf8({point}));
  }
  std::mt19937 random(std::random_device{}());
  std::size_t compared = 0;
  for (int round = 0; round < 200'000 && compared < 20'000; ++round) {
    const std::string text = random_text(random);
    if (!is_old(text)) continue;
    compare(text);
    ++compared;
  }
  EXPECT_GT(compared, 5'000U);
}
#endif

TEST(Unicode, NormalisingTwiceChangesNothing) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 5'000; ++round) {
    for (const auto form :
         {NormalizationForm::nfc, NormalizationForm::nfd, NormalizationForm::nfkc, NormalizationForm::nfkd}) {
      std::string once = random_text(random);
      normalize(form, once);
      std::string twice = once;
      normalize(form, twice);
      ASSERT_EQ(once, twice);
    }
  }
}

TEST(Unicode, TrustFollowsTheBytesThroughNormalisation) {
  std::string text = "xe\u0301y";
  std::vector<std::uint8_t> trust = {1, 1, 0, 0, 1};  // the accent came from somebody else
  normalize(NormalizationForm::nfc, text, &trust);
  EXPECT_EQ(text, "x\u00E9y");
  EXPECT_EQ(trust, (std::vector<std::uint8_t>{1, 0, 0, 1}));
}

TEST(Regex, RefusesWhatPcre2WouldReadDifferently) {
  for (const char* pattern : {"[a-z&&[^b]]", "[a[bc]]", "\\p{N}{1,3}+", "[\\W]", "(", "\\p{NoSuch}"}) {
    EXPECT_ANY_THROW(Regex{pattern}) << pattern;
  }
}

TEST(Regex, ScriptsAreScriptsAndWordsAreWords) {
  std::vector<RegexStretch> stretches;
  Regex("\\p{Han}+").cut("中。", stretches);
  ASSERT_EQ(stretches.size(), 2U);  // the full stop is used with Han but is not Han
  Regex("\\w+").cut("e\u0301½-", stretches);
  EXPECT_EQ(stretches.front().end, 5U);
}

}  // namespace
}  // namespace tensorfold::text
