// Texts made to be slow: time stays linear, memory bounded, and the fast paths say what the slow one says.
#include <chrono>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shared_data.h"
#include "text/tokenizer.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_regex.h"

namespace tensorfold::text {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

const Tokenizer& demo() {
  static const Tokenizer tokenizer = Tokenizer::load(testing::project_path("models/demo").string());
  return tokenizer;
}

std::string repeat(const std::string& unit, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

double seconds_to_encode(const std::string& text) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(demo().encode(text).empty());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Eight times the text may take at most 8 times the time, and a factor of 3 for noise and the logarithm; quadratic time
// would take 64 times.
TEST(HostileText, TimeIsLinear) {
  const std::vector<std::string> units = {"a",          " ",      "\n",       "\u0301", "e\u0301", "中",    "1",
                                          "!",          "\t ",    " \n",      "ab",     "<",       "<|im_", "'",
                                          "\U0001F600", "\u1100", "가\u11A8", "the",    "\xFF"};
  for (const std::string& unit : units) {
    const std::string small = repeat(unit, 128 * 1024);
    const std::string large = repeat(unit, 1024 * 1024);
    double ratio = 1e9;
    for (int attempt = 0; attempt < 4 && ratio > 24; ++attempt) {
      ratio = seconds_to_encode(large) / std::max(1e-3, seconds_to_encode(small));
    }
    EXPECT_LE(ratio, 24) << "for a text of '" << unit << "'";
  }
}

TEST(HostileText, DecodingGivesItBack) {
  for (const char* unit : {"a", " ", "\n", "中", "\U0001F600", "<|im_end|>"}) {
    const std::string text = repeat(unit, 300'000);
    EXPECT_TRUE(demo().decode(demo().encode(text)) == text) << unit;
  }
}

// A pattern that outgrows the JIT's stack goes on in the interpreter; one without end gives an error.
TEST(HostileText, RegularExpressionsGiveUpWithAnError) {
  std::vector<RegexStretch> stretches;
  const std::string text(1'000'000, 'a');
  Regex("(?:a|b)*c|a+").cut(text, stretches);
  EXPECT_EQ(stretches.size(), 1U);
  EXPECT_ANY_THROW(Regex("(?:a+)+[bc]").cut(std::string(60, 'a'), stretches));
}

// Byte-pair encoding by its definition: merge the leftmost pair of the lowest rank until none is left.
Ids merge_by_definition(const std::string& word, const std::map<std::string, std::int32_t>& ids,
                        const std::map<std::pair<std::string, std::string>, std::size_t>& ranks) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    std::size_t best = SIZE_MAX, place = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find({parts[i], parts[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        place = i;
      }
    }
    if (best == SIZE_MAX) break;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
  Ids result;
  for (const std::string& part : parts) result.push_back(ids.at(part));
  return result;
}

// Random vocabularies and words of all lengths: short and long merging, cutting and the cache.
TEST(BytePairEncoding, EqualsItsDefinition) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 60; ++round) {
    const std::size_t letters = 2 + random() % 6;
    std::vector<std::string> tokens;
    std::map<std::string, std::int32_t> ids;
    Vocabulary vocabulary;
    const auto add = [&](const std::string& token) {
      const auto id = static_cast<std::int32_t>(tokens.size());
      ids[token] = id;
      vocabulary.insert(token, id);
      tokens.push_back(token);
    };
    for (std::size_t i = 0; i < letters; ++i) add(std::string(1, static_cast<char>('a' + i)));
    std::vector<std::pair<std::string, std::string>> pairs;
    std::map<std::pair<std::string, std::string>, std::size_t> ranks;
    for (auto i = random() % 40; i > 0; --i) {
      const std::pair<std::string, std::string> pair = {tokens[random() % tokens.size()],
                                                        tokens[random() % tokens.size()]};
      if (ranks.contains(pair) || pair.first.size() + pair.second.size() > 12) continue;
      if (!ids.contains(pair.first + pair.second)) add(pair.first + pair.second);
      ranks[pair] = pairs.size();
      pairs.push_back(pair);
    }
    std::vector<BpeMerge> merges;
    for (const auto& [left, right] : pairs) merges.push_back({left, right});
    const BpeModel model(std::move(vocabulary), merges, {});
    BpeScratch scratch;
    for (int repeat_count = 0; repeat_count < 60; ++repeat_count) {
      std::string word;
      for (auto i = 1 + random() % (repeat_count % 3 == 0 ? 200 : 40); i > 0; --i)
        word += static_cast<char>('a' + random() % letters);
      Ids ours;
      model.encode_word(word, scratch, ours);
      ASSERT_EQ(ours, merge_by_definition(word, ids, ranks)) << word;
      Ids again;
      model.encode_word(word, scratch, again);
      ASSERT_EQ(again, ours) << "from the cache";
    }
  }
}

TEST(Threads, ManyEncodersAtOnceAgree) {
  const std::string text = repeat("The fox's 12 friends, é中\n\n", 20'000);
  const Ids expected = demo().encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results) threads.emplace_back([&] { result = demo().encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace tensorfold::text
