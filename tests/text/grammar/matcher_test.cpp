// The automaton and its masks, whatever the front end.
#include "text/grammar/matcher.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/grammar/grammar.h"

namespace tensorfold::text::grammar {
namespace {

using nlohmann::ordered_json;

/// Every byte alone, then frequent and awkward strings: parts of JSON, pieces of characters, tokens of several kinds.
std::shared_ptr<const Vocabulary> small_vocabulary(uint32_t seed) {
  std::vector<std::string> tokens = {""};  // a control token
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token :
       {"{\"",  "\":",    "\",",      "\"}",    " {",   "  ",   "\n",    "\n\n", "true",     "false",
        "null", "}}",     "],",       "\": \"", "ab",   "abc",  "abcd",  "\\u",  "\\n",      "\\\"",
        "00",   "12",     "-",        "1.",     ".5",   "e+",   "é",     "日本", "\xE6\x97", "\xA5",
        "name", "\"name", "\"name\"", "age",    "yes",  "no",   "yes\"", "aa",   "aaaa",     "\",\"",
        "\"]",  "[",      "[[",       "0\"",    "\t\t", "ab\"", "a\"}",  "a\\",  "\\\\\""}) {
    tokens.emplace_back(token);
  }
  std::mt19937 random(seed);
  const std::string letters = "ab{}[]\",:\\ un0123e.-\n\xC3\xA9";
  for (int i = 0; i < 400; ++i) {
    std::string token;
    const size_t length = 1 + random() % 6;
    for (size_t k = 0; k < length; ++k) token += letters[random() % letters.size()];
    tokens.push_back(token);
  }
  return std::make_shared<Vocabulary>(tokens);
}

bool has(const TokenMask& mask, size_t token) { return (mask[token / 32] >> (token % 32) & 1U) != 0; }

/// The mask by definition: a token is allowed if the text with it can still be completed.
TokenMask by_brute_force(Matcher& matcher, Matcher::Cursor& cursor) {
  const Vocabulary& vocabulary = matcher.vocabulary();
  TokenMask mask(vocabulary.words(), 0U);
  for (size_t token = 0; token < vocabulary.size(); ++token) {
    const std::string_view bytes = vocabulary.bytes(static_cast<int32_t>(token));
    if (!bytes.empty() && matcher.standing(cursor, bytes) != Matcher::Standing::dead) {
      mask[token / 32] |= 1U << (token % 32);
    }
  }
  return mask;
}

struct Sample {
  const char* name;
  Automaton automaton;
};

std::vector<Sample> samples() {
  std::vector<Sample> all;
  const auto schema = [&](const char* name, const char* text) {
    all.push_back({name, compile_json_schema(ordered_json::parse(text))});
  };
  all.push_back({"any object", compile_json_object()});
  all.push_back({"any value", compile_json_value()});
  all.push_back({"choice", compile_choice({"yes", "no", "yes, please", "a\"b", "日本", "abc", "abcd"})});
  all.push_back({"regex", compile_regex("(ab|cd)*[^a-c]{2,40}x?\\d+")});
  all.push_back({"all text", compile_regex("(.|\\n)*")});
  all.push_back(
      {"ebnf", compile_ebnf("root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\"")});
  schema("bounded", R"({"type":"object","properties":{"name":{"type":"string","maxLength":3},
      "tags":{"type":"array","items":{"type":"string","minLength":1,"maxLength":70},"maxItems":3},
      "age":{"type":"integer","minimum":-3,"maximum":120},"ok":{"type":"boolean"}},"required":["name"]})");
  schema("union", R"({"anyOf":[{"type":"string"},{"enum":["abc","yes",12]},{"type":"string","maxLength":2},
      {"type":"array","items":{"type":["string","null"]}}]})");
  schema(
      "open",
      R"({"type":"object","properties":{"a":{"type":"string"},"name":{}},"additionalProperties":{"type":"string"}})");
  schema("tree", R"({"$defs":{"t":{"type":"object","properties":{"v":{"type":"number"},"k":{"type":"array",
      "items":{"$ref":"#/$defs/t"}}},"required":["v"]}},"$ref":"#/$defs/t"})");
  schema("pattern", R"({"type":"string","pattern":"^a\"?[^b]{1,5}$","maxLength":4})");
  return all;
}

TEST(GrammarMatcher, MasksAreWhatBruteForceSays) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto vocabulary = small_vocabulary(seed);
  size_t compared = 0;
  for (Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    Matcher matcher(sample.automaton, vocabulary);
    for (int walk = 0; walk < 12; ++walk) {
      Matcher::Cursor cursor = matcher.begin();
      std::string text;
      for (int step = 0; step < 40; ++step) {
        TokenMask mask(vocabulary->words(), 0xDEADBEEF);
        const Matcher::Standing standing = matcher.mask(cursor, {}, mask);
        ASSERT_EQ(mask, by_brute_force(matcher, cursor)) << text;
        ++compared;
        std::vector<int32_t> allowed;
        for (size_t token = 0; token < vocabulary->size(); ++token) {
          if (has(mask, token)) allowed.push_back(static_cast<int32_t>(token));
        }
        ASSERT_EQ(allowed.empty(), standing == Matcher::Standing::exhausted) << text;
        if (allowed.empty()) break;
        const std::string_view bytes = vocabulary->bytes(allowed[random() % allowed.size()]);
        ASSERT_TRUE(matcher.advance(cursor, bytes));
        text += bytes;
      }
    }
  }
  EXPECT_GT(compared, 1000U);
}

TEST(GrammarMatcher, ForgettingWhatItKeepsChangesNothing) {
  const auto vocabulary = small_vocabulary(7);
  for (Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    Matcher kept(sample.automaton, vocabulary);
    Matcher forgetful(sample.automaton, vocabulary);
    forgetful.set_limits(3, 1);
    std::mt19937 random(11);
    Matcher::Cursor a = kept.begin();
    Matcher::Cursor b = forgetful.begin();
    for (int step = 0; step < 60; ++step) {
      TokenMask mask_a(vocabulary->words(), 1U);
      TokenMask mask_b(vocabulary->words(), 2U);
      ASSERT_EQ(kept.mask(a, {}, mask_a), forgetful.mask(b, {}, mask_b));
      ASSERT_EQ(mask_a, mask_b);
      std::vector<int32_t> allowed;
      for (size_t token = 0; token < vocabulary->size(); ++token) {
        if (has(mask_a, token)) allowed.push_back(static_cast<int32_t>(token));
      }
      if (allowed.empty()) break;
      const std::string_view bytes = vocabulary->bytes(allowed[random() % allowed.size()]);
      ASSERT_TRUE(kept.advance(a, bytes));
      ASSERT_TRUE(forgetful.advance(b, bytes));
    }
  }
}

TEST(GrammarMatcher, LooksAheadWithoutMoving) {
  Matcher matcher(compile_choice({"yes", "yes, please"}), small_vocabulary(1));
  Matcher::Cursor cursor = matcher.begin();
  EXPECT_EQ(matcher.standing(cursor, "ye"), Matcher::Standing::open);
  EXPECT_EQ(matcher.standing(cursor, "yes"), Matcher::Standing::complete);
  EXPECT_EQ(matcher.standing(cursor, "yes, please"), Matcher::Standing::exhausted);
  EXPECT_EQ(matcher.standing(cursor, "yes!"), Matcher::Standing::dead);
  EXPECT_EQ(matcher.standing(cursor), Matcher::Standing::open);
  EXPECT_FALSE(matcher.advance(cursor, "no"));
  EXPECT_TRUE(Matcher::dead(cursor));
}

TEST(GrammarMatcher, DeepNestingAndLongListsStayCheap) {
  Matcher matcher(compile_json_value(), small_vocabulary(1));
  Matcher::Cursor cursor = matcher.begin();
  const std::string open(5000, '[');
  const std::string close(5000, ']');
  EXPECT_TRUE(matcher.advance(cursor, open + "1"));
  EXPECT_TRUE(matcher.advance(cursor, close));
  EXPECT_EQ(matcher.standing(cursor), Matcher::Standing::exhausted);
  std::string list = "[1";
  for (int i = 0; i < 20000; ++i) list += ", 1";
  EXPECT_TRUE(matcher.matches(list + "]"));
}

TEST(GrammarCompiler, RefusesWhatHasNoEnd) {
  EXPECT_THROW((void)compile_ebnf("root ::= \"a\" root"), Error);
  EXPECT_THROW((void)compile_ebnf("root ::= b \"x\"\nb ::= root \"y\" | \"z\""), Error);
  EXPECT_THROW((void)compile_ebnf("root ::= \"x\"? root2\nroot2 ::= root | \"y\""), Error);
}

}  // namespace
}  // namespace tensorfold::text::grammar
