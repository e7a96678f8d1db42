#include <gtest/gtest.h>

#include "backend/attention_mixer.h"

namespace tensorfold::testing {
namespace {

const AttentionShape kShapes[] = {
    {4, 2, 32, 32, 4, false, true, 0, true},             // as qwen3_5
    {3, 1, 24, 40, 12, true, false, 0, false},           // odd sizes, interleaved
    {6, 3, 16, 16, 8, false, false, 100, true},          // sliding window
    {4, 1, 48, 48, 5, false, false, 0, true, true, 19},  // as gemma4's full layers
};

TEST(Attention, MatchesDoublePrecision) {
  Random random(11);
  for (const AttentionShape& shape : kShapes) {
    AttentionMixer mixer(shape, random);
    const std::vector<float> rows = random_floats(random, 150 * mixer.input_width());
    EXPECT_TRUE(close_to(run_serially(worlds().back(), mixer, rows, 7).outputs, mixer.reference(rows), 2e-5));
  }
}

TEST(Attention, ChunksWindowsNeighboursPagesAndThreadsChangeNoBits) {
  Random random(12);
  for (const AttentionShape& shape : kShapes) {
    AttentionMixer mixer(shape, random);
    const int64_t total = random_integer(random, 520, 700);  // past one partition
    const std::vector<float> rows[] = {random_floats(random, total * mixer.input_width()),
                                       random_floats(random, total * mixer.input_width())};
    const SerialRun serial[] = {run_serially(worlds().back(), mixer, rows[0], 64),
                                run_serially(worlds().back(), mixer, rows[1], 64)};
    for (const World& world : worlds()) {
      for (const int32_t page_tokens : {1, 7, 64}) {
        if (page_tokens != 7 && world.threads == 1) continue;  // the page size matters before the arithmetic
        SCOPED_TRACE(describe(world) + ", pages of " + std::to_string(page_tokens));
        expect_serial_bits(world, mixer, random, page_tokens, rows, serial);
      }
    }
  }
}

TEST(Attention, TreeNodesHaveTheBitsOfTheirPath) {
  Random random(13);
  for (const AttentionShape& shape : kShapes) {
    AttentionMixer mixer(shape, random);
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      expect_tree_bits(world, mixer, random, 7, static_cast<int32_t>(random_integer(random, 1, 140)), 12);
      expect_tree_bits(world, mixer, random, 64, static_cast<int32_t>(random_integer(random, 500, 515)), 5);
    }
  }
}

TEST(Attention, ABidirectionalBlockSeesItsPastAndAllOfItself) {
  Random random(14);
  AttentionMixer mixer(kShapes[1], random);
  const std::vector<float> rows = random_floats(random, 75 * mixer.input_width());
  std::vector<float> expected;
  for (const World& world : worlds()) {
    SCOPED_TRACE(describe(world));
    MixerSession session(world, mixer, 16, 100);
    backend::Plan past;
    session.add(past, 0, 67, true);
    mixer.bidirectional = false;
    session.run(past, slice_rows(rows, mixer.input_width(), 0, 67));
    backend::Plan block;
    session.add(block, 0, 8, false);
    mixer.bidirectional = true;
    const std::vector<float> y = session.run(block, slice_rows(rows, mixer.input_width(), 67, 8));
    const std::vector<double> reference = mixer.reference(rows);  // its last 8 rows see all 75
    EXPECT_TRUE(close_to(y, {reference.end() - 8 * mixer.output_width(), reference.end()}, 2e-5));
    if (expected.empty()) expected = y;
    EXPECT_TRUE(same_bits(y, expected));
  }
}

}  // namespace
}  // namespace tensorfold::testing
