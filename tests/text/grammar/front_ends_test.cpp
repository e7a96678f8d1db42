// Regular expressions, EBNF and choices: the texts they hold and what they refuse.
#include <chrono>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/grammar/grammar.h"
#include "text/grammar/matcher.h"
#include "text/grammar/number_range.h"

namespace tensorfold::text::grammar {
namespace {

Matcher matcher(Automaton automaton) {
  return Matcher(std::move(automaton), std::make_shared<Vocabulary>(std::vector<std::string>{}));
}

struct Case {
  const char* grammar;
  std::vector<const char*> valid;
  std::vector<const char*> invalid;
};

class Patterns : public ::testing::TestWithParam<Case> {};

TEST_P(Patterns, HoldTheRightTexts) {
  Matcher grammar(compile_regex(GetParam().grammar), std::make_shared<Vocabulary>(std::vector<std::string>{}));
  for (const char* text : GetParam().valid) EXPECT_TRUE(grammar.matches(text)) << GetParam().grammar << "\n" << text;
  for (const char* text : GetParam().invalid) EXPECT_FALSE(grammar.matches(text)) << GetParam().grammar << "\n" << text;
}

INSTANTIATE_TEST_SUITE_P(
    Regex, Patterns,
    ::testing::Values(
        Case{"(\\+\\d{1,3} )?\\d{3}-\\d{4}", {"555-1234", "+49 555-1234"}, {"5551234", "+ 555-1234", "555-12345"}},
        Case{"^(yes|no)$", {"yes", "no"}, {"yesno", ""}}, Case{"a{2,}b?", {"aa", "aaab"}, {"a", "ab"}},
        Case{"[^\\W_]+", {"aZ9"}, {"_", "é"}}, Case{"é|[α-ω]{2}", {"é", "αω"}, {"\xC3", "α"}},
        Case{"\\u00e9\\x41\\u{1F600}", {"éA😀"}, {"eA"}}, Case{".", {"a", "é", "😀"}, {"\n", "", "ab", "\xC3"}},
        Case{"(?:a|)(?<n>b)*?", {"", "a", "abb", "b"}, {"aa"}}, Case{"{x}", {"{x}"}, {"x"}},
        Case{"(a*)*b", {"b", "aaab"}, {"a"}}, Case{"(a?){50}", {"", "aaa"}, {"b"}}));

/// What ECMA-262 and Python's re (of str) both say of a class and of its negation; letters that they read differently
/// are members of neither.
TEST(Regex, AClassAndItsNegationHoldWhatEveryDialectAgreesOn) {
  const std::vector<std::string> contested_spaces = {"\u00A0", "\u205F", "\u2028", "\uFEFF", "\x1C", "\u0085"};
  const std::vector<std::string> contested_words = {"é", "²", "٣", "ſ", "日"};
  struct ClassCase {
    std::vector<const char*> patterns;
    std::vector<std::string> valid;
    std::vector<std::string> invalid;
  };
  const std::vector<ClassCase> cases = {
      {{"\\S", "[^\\s]", "[\\S]", "[^\\s!]"}, {"a", "é", "日", "\x01"}, {" ", "\t"}},
      {{"\\s", "[^\\S]", "[\\s]"}, {" ", "\n"}, {"a", "é"}},
      {{"\\W", "[^\\w]", "[\\W]"}, {"-", " ", "。", "😀"}, {"a", "_", "5"}},
      {{"\\w", "[^\\W]"}, {"a", "_", "5"}, {"-", "。"}},
      {{"\\D", "[^\\d]"}, {"a", "é", "²", "😀"}, {"5", "٣"}},
      {{"\\d", "[^\\D]"}, {"5"}, {"a", "٣", "²"}},
      {{"[\\s\\S]", "[\\w\\W]", "[\\d\\D]"}, {"a", "]", "\u00A0", "é", "٣"}, {""}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    for (const char* pattern : cases[i].patterns) {
      Matcher grammar = matcher(compile_regex(pattern));
      for (const auto& text : cases[i].valid) EXPECT_TRUE(grammar.matches(text)) << pattern << " " << text;
      for (const auto& text : cases[i].invalid) EXPECT_FALSE(grammar.matches(text)) << pattern << " " << text;
      if (i >= 4) continue;
      for (const auto& text : i < 2 ? contested_spaces : contested_words) {
        EXPECT_FALSE(grammar.matches(text)) << pattern << " " << text;
      }
    }
  }
  EXPECT_THROW((void)compile_regex("[^\\s\\S]"), Error) << "matches nothing";
}

TEST(Regex, ManyClassesOfLettersAreRefusedInTime) {
  std::string pattern;
  while (pattern.size() < (size_t{256} << 10)) pattern += "\\W[^\\w][\\w-]\\w\\D";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW((void)compile_regex(pattern), Error);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

class RefusedPatterns : public ::testing::TestWithParam<const char*> {};
TEST_P(RefusedPatterns, AreErrors) { EXPECT_THROW((void)compile_regex(GetParam()), Error) << GetParam(); }
INSTANTIATE_TEST_SUITE_P(Regex, RefusedPatterns,
                         ::testing::Values("(?=a)b", "(?!a)b", "(?<=a)b", "(a)\\1", "a\\b", "\\p{L}", "a++", "a**",
                                           "*a", "(a", "a)", "[a", "[b-a]", "a{3,2}", "x^y", "(?i)a", "\\",
                                           "[[:alpha:]]", "a{999999}", "\xFF", "\\q", "[]"));

class Grammars : public ::testing::TestWithParam<Case> {};

TEST_P(Grammars, HoldTheRightTexts) {
  Matcher grammar(compile_ebnf(GetParam().grammar), std::make_shared<Vocabulary>(std::vector<std::string>{}));
  for (const char* text : GetParam().valid) EXPECT_TRUE(grammar.matches(text)) << GetParam().grammar << "\n" << text;
  for (const char* text : GetParam().invalid) EXPECT_FALSE(grammar.matches(text)) << GetParam().grammar << "\n" << text;
}

INSTANTIATE_TEST_SUITE_P(
    Ebnf, Grammars,
    ::testing::Values(
        Case{"root ::= select\nselect ::= \"SELECT \" column \" from \" table where?\n"
             "column ::= \"a\" | \"b\" # comment\ntable ::= [a-z_]+\nwhere ::= \" where \" column \"=\" [0-9]{1,3}",
             {"SELECT a from t", "SELECT b from my_t where a=12"},
             {"SELECT c from t", "SELECT a from t where a=", "SELECT a from t where a=1234"}},
        Case{"root ::= \"(\" root \")\" |\n  \"x\"\n", {"x", "((x))"}, {"(x", "()"}},
        Case{"root ::= [^\"\\\\\\n]* \"\\n\" \"\\x41\" '\\u00e9'", {"ab\nAé"}, {"a\"\nAé"}},
        Case{"?start: expr\nexpr: expr \"+\" term | term -> single\nterm: NUMBER | \"(\" expr \")\"\n%import "
             "common.NUMBER\n",
             {"1+2+3", "(1+2)+3.5"},
             {"1+", "+1"}},
        Case{"start: greeting [\" \" NAME] \"!\" ~ 1..2\ngreeting: \"hi\"i\nNAME.2: /[A-Z][a-z]*/ | \"0\"..\"9\"\n",
             {"HI!", "hi Bob!!", "Hi 7!"},
             {"hi bob!", "hi!!!"}},
        Case{"first-rule ::= . second_rule*\nsecond_rule ::= \"b\" // end", {"ab", "éb", "xbb"}, {"a\xFF", "b a"}}));

class RefusedGrammars : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};
TEST_P(RefusedGrammars, SayWhere) {
  try {
    (void)compile_ebnf(GetParam().first);
    FAIL() << GetParam().first;
  } catch (const Error& failure) {
    EXPECT_THAT(failure.what(), ::testing::HasSubstr(GetParam().second));
  }
}
INSTANTIATE_TEST_SUITE_P(Ebnf, RefusedGrammars,
                         ::testing::Values(std::pair{"", "no rules"},
                                           std::pair{"root ::= other", "line 1, column 10: no rule is called 'other'"},
                                           std::pair{"root ::= \"a", "line 1, column 10: a literal without an end"},
                                           std::pair{"root ::= (\"a\"", "expected ')'"},
                                           std::pair{"root ::= \"a\"\nroot ::= \"b\"", "stands twice"},
                                           std::pair{"root ::= \"a\" |\n  @", "line 2, column 3"},
                                           std::pair{"start: \"a\"\n%ignore \" \"", "%ignore"},
                                           std::pair{"root ::= a\na ::= b\nb ::= a \"x\" | \"y\"", "left-recursive"},
                                           std::pair{"root ::= [z-a]", "range"},
                                           std::pair{"just words", "expected a rule"}));

TEST(Choice, HoldsItsTexts) {
  Matcher grammar = matcher(compile_choice({"positive", "negative", "pos", "日本", "a\nb"}));
  for (const char* text : {"positive", "negative", "pos", "日本", "a\nb"}) EXPECT_TRUE(grammar.matches(text));
  for (const char* text : {"", "posit", "neg", "日", "positive "}) EXPECT_FALSE(grammar.matches(text));
}

/// Random patterns of a small language, against the standard library's reading of them.
class RandomPattern {
 public:
  explicit RandomPattern(uint32_t seed) : random_(seed) {}
  std::string pattern(int depth = 3) {
    std::string result;
    const size_t parts = 1 + random_() % 3;
    for (size_t i = 0; i < parts; ++i) result += atom(depth);
    if (depth > 0 && random_() % 3 == 0) result += "|" + pattern(depth - 1);
    return result;
  }
  std::string text() {
    std::string result;
    for (size_t length = random_() % 8; length > 0; --length) result += "abc"[random_() % 3];
    return result;
  }

 private:
  std::string atom(int depth) {
    static const std::vector<std::string> simple = {"a", "b", "c", "[ab]", "[^a]", "."};
    std::string one =
        depth > 0 && random_() % 3 == 0 ? "(" + pattern(depth - 1) + ")" : simple[random_() % simple.size()];
    // The last one is a counted loop; loops in loops would be as many readings as the product of their counts.
    static const std::vector<std::string> repeats = {"", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,30}"};
    return one + repeats[random_() % (one.size() == 1 ? repeats.size() : 6)];
  }
  std::mt19937 random_;
};

TEST(Regex, RandomPatternsAgreeWithTheStandardLibrary) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  RandomPattern random(seed);
  size_t matched = 0;
  for (int i = 0; i < 150; ++i) {
    const std::string pattern = random.pattern();
    Matcher grammar = matcher(compile_regex(pattern));
    // The library's other algorithm takes exponential time on loops in loops.
    const std::regex reference(pattern, std::regex_constants::ECMAScript | std::regex_constants::__polynomial);
    for (int k = 0; k < 40; ++k) {
      const std::string text = random.text();
      const bool expected = std::regex_match(text, reference);
      ASSERT_EQ(grammar.matches(text), expected) << pattern << "\n" << text;
      matched += expected ? 1 : 0;
    }
  }
  EXPECT_GT(matched, 100U);
}

TEST(Regex, LoopsInLoopsAreRefusedInTime) {
  EXPECT_THROW((void)matcher(compile_regex("(((a?){0,1000}){0,1000}){0,1000}")), Error);
  EXPECT_THROW((void)matcher(compile_regex("((a{0,300}b?){0,300}c?){0,300}x")), Error);
}

TEST(NumberRange, RandomIntegerBoundsAgreeWithArithmetic) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto draw = [&] { return static_cast<int64_t>(random() % 4000) - 2000; };
  for (int i = 0; i < 60; ++i) {
    const int64_t a = draw();
    const int64_t b = draw();
    const bool inclusive = random() % 2 == 0;
    const int64_t low = std::min(a, b);
    const int64_t high = std::max(a, b) + 2;
    RuleSet rules;
    rules.root = rules.add("range", integers_between(NumberBound{std::to_string(low), inclusive},
                                                     NumberBound{std::to_string(high), inclusive}));
    Matcher grammar = matcher(compile(rules));
    for (int64_t value = -2100; value < 2100; value += 1 + static_cast<int64_t>(random() % 3)) {
      const bool inside = inclusive ? low <= value && value <= high : low < value && value < high;
      ASSERT_EQ(grammar.matches(std::to_string(value)), inside) << value << " in " << low << " to " << high;
    }
  }
}

TEST(NumberRange, RandomDecimalBoundsAgreeWithArithmetic) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto draw = [&] { return static_cast<double>(static_cast<int32_t>(random() % 40001) - 20000) / 100.0; };
  size_t inside_count = 0;
  for (int i = 0; i < 60; ++i) {
    double low = draw();
    double high = draw();
    if (low > high) std::swap(low, high);
    const bool inclusive = random() % 2 == 0;
    RuleSet rules;
    Expr range;
    range = numbers_between(NumberBound{fmt::format("{}", low), inclusive},
                            NumberBound{fmt::format("{}", high), inclusive});
    rules.root = rules.add("range", choice({range, literal("none")}));
    Matcher grammar = matcher(compile(rules));
    for (int k = 0; k < 300; ++k) {
      const std::string text = fmt::format("{:.{}f}", k % 7 == 0 ? (k % 2 == 0 ? low : high) : draw(), random() % 4);
      if (text == "-0" || text.rfind("-0.000", 0) == 0 || text == "-0.0" || text == "-0.00") continue;
      const double value = std::stod(text);
      const bool inside = inclusive ? low <= value && value <= high : low < value && value < high;
      inside_count += inside ? 1 : 0;
      ASSERT_EQ(grammar.matches(text), inside) << text << " in " << low << " to " << high << " " << inclusive;
    }
  }
  EXPECT_GT(inside_count, 1000U);
}

}  // namespace
}  // namespace tensorfold::text::grammar
