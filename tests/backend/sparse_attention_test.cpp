#include <gtest/gtest.h>

#include "backend/sparse_mixers.h"

namespace tensorfold::testing {
namespace {

const IndexShape kMeans = {.heads = 2, .dim = 16, .block = 4, .chosen = 3, .gated = false, .rotary = 4};
const IndexShape kGated = {.heads = 1, .dim = 24, .block = 4, .chosen = 5, .gated = true, .rotary = 0};
const IndexShape kOdd = {.heads = 5, .dim = 20, .block = 3, .chosen = 2, .gated = true, .rotary = 0};

/// Every kind of attention over a selection, and latent attention without one.
std::vector<std::unique_ptr<SparseMixer>> make_mixers(Random& random) {
  std::vector<std::unique_ptr<SparseMixer>> mixers;
  mixers.push_back(std::make_unique<SparseAttentionMixer>(4, 2, 16, kMeans, random));
  mixers.push_back(std::make_unique<SparseAttentionMixer>(3, 1, 24, kOdd, random));
  mixers.push_back(std::make_unique<LatentMixer>(LatentShape{4, 16, 24, 64, 4, false}, kGated, random));
  mixers.push_back(std::make_unique<LatentMixer>(LatentShape{3, 20, 8, 40, 0, true}, kOdd, random));
  mixers.push_back(std::make_unique<LatentMixer>(LatentShape{8, 12, 12, 1088, 8, false}, std::nullopt, random));
  return mixers;
}

TEST(SparseAttention, MatchesDoublePrecision) {
  Random random(91);
  for (const auto& mixer : make_mixers(random)) {
    const std::vector<float> rows = random_floats(random, 70 * mixer->input_width());
    const std::vector<double> expected = mixer->reference(rows);
    const double largest = *std::max_element(expected.begin(), expected.end());
    EXPECT_TRUE(close_to(run_serially(worlds().back(), *mixer, rows, 7).outputs, expected, 3e-6 * (1.0 + largest)));
  }
}

TEST(SparseAttention, ChunksWindowsNeighboursPagesAndThreadsChangeNoBits) {
  Random random(92);
  for (const auto& mixer : make_mixers(random)) {
    const int64_t total = random_integer(random, 60, 90);
    const std::vector<float> rows[] = {random_floats(random, total * mixer->input_width()),
                                       random_floats(random, total * mixer->input_width())};
    const SerialRun serial[] = {run_serially(worlds().back(), *mixer, rows[0], 64),
                                run_serially(worlds().back(), *mixer, rows[1], 64)};
    for (const World& world : worlds()) {
      for (const int32_t page_tokens : {1, 7, 64}) {
        if (page_tokens != 7 && world.threads == 1) continue;  // the page size matters before the arithmetic
        SCOPED_TRACE(describe(world) + ", pages of " + std::to_string(page_tokens));
        expect_serial_bits(world, *mixer, random, page_tokens, rows, serial);
      }
    }
  }
}

TEST(SparseAttention, TreeNodesHaveTheBitsOfTheirPath) {
  Random random(93);
  for (const auto& mixer : make_mixers(random)) {
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      expect_tree_bits(world, *mixer, random, 7, static_cast<int32_t>(random_integer(random, 14, 40)), 12);
    }
  }
}

TEST(SparseAttention, ManyKeysFillSeveralPartitions) {
  Random random(94);
  const IndexShape wide = {.heads = 3, .dim = 16, .block = 4, .chosen = 140, .gated = true, .rotary = 0};
  SparseAttentionMixer mixer(2, 1, 8, wide, random);
  const int64_t total = 700;  // 175 blocks; 560 selected keys and a tail are two partitions of 512
  const std::vector<float> rows[] = {random_floats(random, total * mixer.input_width()),
                                     random_floats(random, total * mixer.input_width())};
  const SerialRun serial[] = {run_serially(worlds().back(), mixer, rows[0], 64),
                              run_serially(worlds().back(), mixer, rows[1], 64)};
  const std::vector<double> expected = mixer.reference(rows[0]);
  EXPECT_TRUE(close_to(serial[0].outputs, expected, 1e-5));
  expect_serial_bits(worlds().back(), mixer, random, 7, rows, serial);
}

/// Equal keys score equally: the lower blocks are kept.
TEST(SparseAttention, TiesGoToTheLowerBlock) {
  Random random(95);
  const IndexShape shape = {.heads = 1, .dim = 4, .block = 2, .chosen = 2, .gated = true, .rotary = 0};
  SparseAttentionMixer mixer(1, 1, 4, shape, random);
  const int64_t width = mixer.input_width();
  std::vector<float> rows(static_cast<size_t>(9 * width), 0.0F);
  for (int64_t row = 0; row < 9; ++row) {
    rows[static_cast<size_t>(row * width + 8)] = static_cast<float>(row);  // value
  }
  const std::vector<float> y = run_serially(worlds().back(), mixer, rows, 3).outputs;
  EXPECT_FLOAT_EQ(y[8 * 4], (0.0F + 1.0F + 2.0F + 3.0F + 8.0F) / 5.0F);
  EXPECT_FLOAT_EQ(y[7 * 4], (0.0F + 1.0F + 2.0F + 3.0F) / 4.0F);
  EXPECT_FLOAT_EQ(y[4 * 4], (0.0F + 1.0F + 2.0F + 3.0F + 4.0F) / 5.0F) << "as many blocks as are kept: all positions";
}

}  // namespace
}  // namespace tensorfold::testing
