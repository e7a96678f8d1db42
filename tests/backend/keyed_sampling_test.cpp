// The keyed draw against its recorded vectors, against known answers and against a brute-force reading of the rule.
#include "backend/keyed_sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shared_data.h"

namespace tensorfold::backend {
namespace {

using nlohmann::json;

uint64_t hex(const json& value) { return std::stoull(value.get<std::string>(), nullptr, 16); }
uint64_t decimal(const json& value) {
  const auto text = value.get<std::string>();
  return text.starts_with('-') ? static_cast<uint64_t>(std::stoll(text)) : std::stoull(text);
}

TEST(KeyedArithmetic, ExponentialAgreesWithLibm) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> wide(-700.0, 700.0);
  std::uniform_real_distribution<double> narrow(-1.0, 1.0);
  for (int i = 0; i < 200000; ++i) {
    const double x = i % 2 == 0 ? wide(random) : narrow(random);
    ASSERT_NEAR(keyed::exponential(x) / std::exp(x), 1.0, 6e-16) << x;
  }
  EXPECT_EQ(keyed::exponential(0.0), 1.0);
  EXPECT_EQ(keyed::exponential(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(keyed::exponential(-1e300), 0.0);
  EXPECT_EQ(keyed::exponential(1e300), std::numeric_limits<double>::infinity());
  EXPECT_EQ(keyed::exponential(std::nan("")), 0.0);
}

TEST(KeyedArithmetic, LogarithmAgreesWithLibm) {
  std::mt19937_64 random(12);
  std::uniform_real_distribution<double> power(-300.0, 300.0);
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  for (int i = 0; i < 200000; ++i) {
    const double x = i % 3 == 0 ? std::exp2(power(random)) : i % 3 == 1 ? unit(random) : 1.0 - unit(random) * 1e-9;
    if (x <= 0.0) continue;
    const double expected = std::log(x);
    ASSERT_NEAR(keyed::logarithm(x), expected, std::abs(expected) * 6e-16) << x;
  }
  EXPECT_EQ(keyed::logarithm(1.0), 0.0);
  EXPECT_EQ(keyed::logarithm(0.0), -std::numeric_limits<double>::infinity());
}

TEST(KeyedArithmetic, NeededMassIsTheExactCeiling) {
  std::mt19937_64 random(13);
  for (int i = 0; i < 100000; ++i) {
    const double top_p = std::ldexp(static_cast<double>(random() >> 11), -53 - static_cast<int>(random() % 4));
    if (!(top_p > 0.0 && top_p < 1.0)) continue;
    const auto total = static_cast<int64_t>(random() >> 5);
    // 113-bit products do not fit a double: check need - 1 < top_p * total <= need in 128-bit integers.
    int exponent = 0;
    const auto mantissa = static_cast<uint64_t>(std::ldexp(std::frexp(top_p, &exponent), 53));
    const int shift = 53 - exponent;
    const auto product = static_cast<unsigned __int128>(mantissa) * static_cast<uint64_t>(total);
    const auto need = static_cast<unsigned __int128>(keyed::needed_mass(top_p, total));
    ASSERT_TRUE((need << shift) >= product);
    ASSERT_TRUE(need == 0 || ((need - 1) << shift) < product);
  }
  EXPECT_EQ(keyed::needed_mass(0.5, 3), 2);
  EXPECT_EQ(keyed::needed_mass(1e-320, 1000), 1);
}

TEST(KeyedSampling, KnownAnswersOfTheHash) {
  struct Answer {
    uint64_t seed;
    int64_t position;
    int32_t id;
    uint64_t hash;
    double u, g;
  };
  const Answer answers[] = {
      {0, 0, 0, 0x33fe8bd4f9c57863, 0.20310281705476102, -0.4662735186548661},
      {1, 0, 0, 0x0a385ef24fa6a992, 0.03992265144156687, -1.1696333187645955},
      {0, 1, 0, 0xf53673d646f5b4fb, 0.9578621290338194, 3.145359906226864},
      {0, 0, 1, 0x2aea2ec8299df491, 0.16763584505826384, -0.5799567807288937},
      {1234, 7, 42, 0xb774072e0ef5047a, 0.7166141974875764, 1.0989593628411038},
      {1234, 100, 248319, 0x831acc41343bad2f, 0.5121276530446568, 0.40170016042848594},
      {0x7FFFFFFFFFFFFFFF, 131072, 151643, 0xb521789ab7849d60, 0.7075419786192634, 1.0614369808709305}};
  for (const Answer& answer : answers) {
    const uint64_t hash = keyed::candidate_hash(keyed::row_key(answer.seed, answer.position), answer.id);
    EXPECT_EQ(hash, answer.hash);
    EXPECT_EQ(keyed::uniform(hash), answer.u);
    EXPECT_NEAR(keyed::gumbel(hash), answer.g, 1e-14);
  }
}

TEST(KeyedSampling, KnownSeeds) {
  const std::vector<int32_t> one = {1};
  const std::vector<int32_t> chat = {151644, 872, 198};
  EXPECT_EQ(default_seed({}), 6024232415158801135U);
  EXPECT_EQ(default_seed({}, 7), 7351706603791898857U);
  EXPECT_EQ(default_seed(one), 7978515386019189449U);
  EXPECT_EQ(default_seed(chat), 7971463466475626401U);
  EXPECT_EQ(default_seed(chat, 7), 217168961232091192U);
  EXPECT_EQ(keyed::choice_seed(99, 0), 99U);
  EXPECT_EQ(keyed::choice_seed(99, 3), keyed::finalise(102));
}

class SamplerVectors : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = testing::shared_path("golden/text/sampler.json");
    if (!path) GTEST_SKIP() << "no shared reference data";
    std::ifstream file(*path);
    vectors = json::parse(file);
  }
  json vectors;
};

TEST_F(SamplerVectors, HashesUniformsAndKeys) {
  for (const json& item : vectors["mix"]) EXPECT_EQ(keyed::finalise(hex(item["x"])), hex(item["M"]));
  for (const json& item : vectors["hash"]) {
    const uint64_t key = keyed::row_key(decimal(item["seed"]), item["pos"].get<int64_t>());
    EXPECT_EQ(key, hex(item["h2"]));
    const uint64_t hash = keyed::candidate_hash(key, item["id"].get<int32_t>());
    EXPECT_EQ(hash, hex(item["h3"]));
    EXPECT_EQ(keyed::uniform(hash), item["u"].get<double>());
    EXPECT_NEAR(keyed::gumbel(hash), item["g"].get<double>(), 4e-14);
  }
  for (const json& item : vectors["uniform_edges"]) {
    EXPECT_EQ(keyed::uniform(hex(item["h3"])), item["u"].get<double>());
  }
  for (const json& item : vectors["fp32_order_key"]) {
    const auto bits = static_cast<uint32_t>(hex(item["bits"]));
    float value = 0.0F;
    std::memcpy(&value, &bits, sizeof value);
    EXPECT_EQ(keyed::order_key(value), hex(item["key"]));
  }
}

std::vector<float> logits_of(const json& item) {
  std::vector<float> logits;
  if (item.contains("logits")) {
    for (const json& value : item["logits"]) {
      logits.push_back(value.is_number() ? value.get<float>() : -std::numeric_limits<float>::infinity());
    }
    return logits;
  }
  const json& generator = item["logits_generator"];
  const auto salt = generator["salt"].get<uint64_t>();
  for (uint64_t i = 0; i < generator["V"].get<uint64_t>(); ++i) {
    const auto value = static_cast<int64_t>(keyed::finalise(i * 7919 + salt) >> 40) - (1 << 23);
    logits.push_back(static_cast<float>(value) / static_cast<float>(1U << 20));
  }
  return logits;
}

TEST_F(SamplerVectors, DrawsAndKeptSets) {
  size_t draws = 0;
  for (const json& item : vectors["draws"]) {
    const std::vector<float> logits = logits_of(item);
    DrawRow row;
    row.settings = {.temperature = item["temperature"].get<double>(),
                    .top_k = item["top_k"].get<int32_t>(),
                    .top_p = item["top_p"].get<double>(),
                    .min_p = item["min_p"].get<double>(),
                    .seed = decimal(item["seed"])};
    const auto kept = kept_candidates(logits, row);
    if (item.contains("kept_ids")) {
      EXPECT_EQ(kept, item["kept_ids"].get<std::vector<int32_t>>()) << item["name"];
    }
    for (size_t i = 0; i < item["positions"].size(); ++i) {
      row.position = item["positions"][i].get<int64_t>();
      Drawn drawn;
      EXPECT_EQ(draw_token(logits, row, drawn), item["ids"][i].get<int32_t>()) << item["name"] << " draw " << i;
      EXPECT_EQ(kept.size(), item["kept"][i].get<size_t>()) << item["name"];
      ++draws;
    }
  }
  EXPECT_GT(draws, 900U);
}

TEST_F(SamplerVectors, DefaultSeeds) {
  for (const json& item : vectors["default_seed"]) {
    const auto ids = item["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(default_seed(ids, item["salt"].get<int64_t>()), decimal(item["seed"]));
  }
  for (const json& item : vectors["default_seed_generated"]) {
    std::vector<int32_t> ids;
    for (uint64_t i = 0; i < item["n"].get<uint64_t>(); ++i) {
      ids.push_back(static_cast<int32_t>(keyed::finalise(i) % 248077));
    }
    EXPECT_EQ(default_seed(ids, item["salt"].get<int64_t>()), decimal(item["seed"]));
  }
}

/// The rule read literally: sort everything, cut, draw. libm, no shortcuts.
int32_t brute_force(const std::vector<float>& logits, const DrawRow& row) {
  const SamplingSettings& s = row.settings;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (s.temperature <= 0) return order[0];
  const auto z = [&](int32_t id) {
    return static_cast<double>(logits[static_cast<size_t>(id)]) / std::max(s.temperature, 1e-6);
  };
  if (s.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(s.top_k)));
  if (s.top_p > 0 && s.top_p < 1) {
    double total = 0;
    for (const int32_t id : order) total += std::exp(z(id) - z(order[0]));
    double running = 0;
    size_t n = 0;
    while (n < order.size() && running < s.top_p) running += std::exp(z(order[n++]) - z(order[0])) / total;
    order.resize(std::max<size_t>(n, 1));
  }
  if (s.min_p > 0) {
    size_t n = 1;
    while (n < order.size() && z(order[n]) >= z(order[0]) + std::log(s.min_p)) ++n;
    order.resize(n);
  }
  int32_t best = order[0];
  double best_score = -1e300;
  for (const int32_t id : order) {
    const double u = keyed::uniform(keyed::candidate_hash(keyed::row_key(s.seed, row.position), id));
    const double score = z(id) - std::log(-std::log(u));
    if (score > best_score) {
      best_score = score;
      best = id;
    }
  }
  return best;
}

TEST(KeyedSampling, EqualsBruteForceOnRandomRows) {
  std::mt19937_64 random(2024);
  for (int trial = 0; trial < 3000; ++trial) {
    const size_t vocabulary = 1 + random() % (trial % 10 == 0 ? 5000 : 300);
    const float spread = std::array{0.5F, 3.0F, 12.0F}[random() % 3];
    const float grain = trial % 3 == 0 ? 0.25F : 0.0F;  // many equal logits
    std::vector<float> logits(vocabulary);
    for (float& logit : logits) {
      logit = spread * std::normal_distribution<float>()(random);
      if (grain > 0) logit = std::round(logit / grain) * grain;
    }
    DrawRow row;
    row.position = static_cast<int64_t>(random() % 100000);
    row.settings = {.temperature = std::array{0.0, 0.3, 1.0, 1.7}[random() % 4],
                    .top_k = std::array{0, 0, 1, 5, 20, 600, 100000}[random() % 7],
                    .top_p = std::array{0.0, 1.0, 0.1, 0.8, 0.95, 0.999}[random() % 6],
                    .min_p = std::array{0.0, 0.0, 0.05, 0.5, 1.0}[random() % 5],
                    .seed = random()};
    Drawn drawn;
    ASSERT_EQ(draw_token(logits, row, drawn), brute_force(logits, row)) << "trial " << trial;
  }
}

TEST(KeyedSampling, DrawsFollowTheDistribution) {
  const std::vector<float> logits = {1.0F, 0.0F, -1.0F, 2.0F};
  std::array<int, 4> counts{};
  constexpr int draws = 60000;
  DrawRow row;
  row.settings = {.temperature = 1.0, .top_k = 0, .top_p = 1.0, .min_p = 0.0, .seed = 5};
  for (int i = 0; i < draws; ++i) {
    row.position = i;
    Drawn drawn;
    ++counts[static_cast<size_t>(draw_token(logits, row, drawn))];
  }
  double total = 0;
  for (const float logit : logits) total += std::exp(logit);
  for (size_t i = 0; i < 4; ++i) {
    const double share = std::exp(static_cast<double>(logits[i])) / total;
    EXPECT_NEAR(counts[i] / double{draws}, share, 4 * std::sqrt(share * (1 - share) / draws));
  }
}

TEST(KeyedSampling, PenaltiesBiasMaskAndForcedTokens) {
  const std::vector<float> logits = {3.0F, 2.9F, -1.0F, 2.5F};
  Drawn drawn;
  DrawRow row;
  EXPECT_EQ(draw_token(logits, row, drawn), 0);
  const std::vector<TokenCount> seen = {{0, 1, 0}, {1, 0, 2}};
  row.penalties.counts = seen;
  row.penalties.repetition = 1.5F;  // 2.0, 1.93, -1, 2.5
  EXPECT_EQ(draw_token(logits, row, drawn), 3);
  row.penalties.repetition = 1.0F;
  row.penalties.presence = 0.3F;  // prompt tokens are not punished: 3.0, 2.6
  EXPECT_EQ(draw_token(logits, row, drawn), 0);
  const std::vector<LogitBias> biases = {{0, -100.0F}};
  row.penalties.biases = biases;
  EXPECT_EQ(draw_token(logits, row, drawn), 1);
  row.penalties.frequency = 0.1F;  // 2.9 - 0.2 - 0.3
  EXPECT_EQ(draw_token(logits, row, drawn), 3);
  const std::vector<uint32_t> mask = {0b0110};
  row.mask = mask;
  EXPECT_EQ(draw_token(logits, row, drawn), 1);
  row.settings = {.temperature = 1.0, .top_k = 0, .top_p = 1.0, .min_p = 0.0, .seed = 3};
  for (row.position = 0; row.position < 500; ++row.position) {
    const int32_t token = draw_token(logits, row, drawn);
    ASSERT_TRUE(token == 1 || token == 2);
  }
  row.forced = 0;
  EXPECT_EQ(draw_token(logits, row, drawn), 0);
}

TEST(KeyedSampling, RowsWithoutUsableLogitsDoNotCrash) {
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<uint32_t> mask = {0b100};
  for (const std::vector<float>& logits : {std::vector<float>{nan, nan, nan}, {-infinity, -infinity, -infinity}}) {
    for (const double temperature : {0.0, 1.0}) {
      DrawRow row;
      row.settings.temperature = temperature;
      row.mask = mask;
      row.top_logprobs = 3;
      Drawn drawn;
      EXPECT_EQ(draw_token(logits, row, drawn), 2);
    }
  }
  DrawRow row;
  Drawn drawn;
  EXPECT_EQ(draw_token(std::vector<float>{nan, 1.0F, nan, 2.0F}, row, drawn), 3);
  for (const int32_t top_k : {0, 2}) {
    row.settings = {.temperature = 1.0, .top_k = top_k, .top_p = 0.5, .min_p = 0.0, .seed = 0};
    EXPECT_EQ(draw_token(std::vector<float>{0.0F, infinity, infinity}, row, drawn), 1);
  }
}

TEST(KeyedSampling, SharesAreThoseOfTheSoftmax) {
  std::mt19937_64 random(9);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = 4.0F * std::normal_distribution<float>()(random);
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  DrawRow row;
  row.settings.temperature = 1.0;
  row.top_logprobs = 5;
  Drawn drawn;
  draw_token(logits, row, drawn);
  const double logprob = static_cast<double>(logits[static_cast<size_t>(drawn.token)]) - std::log(total);
  EXPECT_NEAR(drawn.logprob, logprob, 1e-5);
  EXPECT_NEAR(drawn.probability, std::exp(logprob), 1e-5);
  ASSERT_EQ(drawn.ranked, 5);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(logits[static_cast<size_t>(drawn.top[i].token)], sorted[i]);
    EXPECT_NEAR(drawn.top[i].logprob, static_cast<double>(sorted[i]) - std::log(total), 1e-5);
  }
}

}  // namespace
}  // namespace tensorfold::backend
