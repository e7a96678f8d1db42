#include <gtest/gtest.h>

#include "backend/delta_mixer.h"

namespace tensorfold::testing {
namespace {

const GatedDeltaShape kShapes[] = {
    {.key_heads = 2, .value_heads = 6, .key_dim = 32, .value_dim = 48, .kernel = 4},
    {.key_heads = 1, .value_heads = 1, .key_dim = 20, .value_dim = 9, .kernel = 3},
    {.key_heads = 2, .value_heads = 2, .key_dim = 128, .value_dim = 128, .kernel = 4},
};

TEST(GatedDelta, MatchesDoublePrecision) {
  Random random(21);
  for (const GatedDeltaShape& shape : kShapes) {
    DeltaMixer mixer(shape, random, shape.key_dim == 32);
    const std::vector<float> rows = random_floats(random, 60 * mixer.input_width());
    // Relative to outputs of a gated norm (about 1): states forget, so errors stay near one row's.
    EXPECT_TRUE(close_to(run_serially(worlds().back(), mixer, rows, 1).outputs, mixer.reference(rows), 2e-3, 1e-3));
  }
}

TEST(GatedDelta, ChunksWindowsNeighboursAndThreadsChangeNoBits) {
  Random random(22);
  for (const GatedDeltaShape& shape : kShapes) {
    DeltaMixer mixer(shape, random, shape.key_dim == 128);
    const int64_t total = random_integer(random, 90, 130);
    const std::vector<float> rows[] = {random_floats(random, total * mixer.input_width()),
                                       random_floats(random, total * mixer.input_width())};
    const SerialRun serial[] = {run_serially(worlds().back(), mixer, rows[0], 64),
                                run_serially(worlds().back(), mixer, rows[1], 64)};
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      expect_serial_bits(world, mixer, random, 64, rows, serial);
    }
  }
}

TEST(GatedDelta, TreeNodesHaveTheBitsOfTheirPath) {
  Random random(23);
  for (const GatedDeltaShape& shape : kShapes) {
    DeltaMixer mixer(shape, random);
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      expect_tree_bits(world, mixer, random, 64, static_cast<int32_t>(random_integer(random, 1, 20)), 14);
    }
  }
}

TEST(GatedDelta, CopiedAndRestoredStatesContinueWithTheSameBits) {
  Random random(24);
  DeltaMixer mixer(kShapes[0], random);
  const std::vector<float> rows = random_floats(random, 20 * mixer.input_width());
  const SerialRun serial = run_serially(worlds().back(), mixer, rows, 64);
  MixerSession session(worlds().back(), mixer, 64, 64);
  backend::Plan plan;
  session.add(plan, 0, 12, true);
  session.run(plan, slice_rows(rows, mixer.input_width(), 0, 12));
  std::vector<std::byte> saved(static_cast<size_t>(session.cache().state_bytes()));
  session.backend().copy_state(session.cache(), 0, 1);
  session.backend().read_state(session.cache(), 1, saved);
  session.backend().clear_state(session.cache(), 0);
  session.backend().write_state(session.cache(), 0, saved);
  backend::Plan rest;
  session.add(rest, 0, 8, true);
  const std::vector<float> y = session.run(rest, slice_rows(rows, mixer.input_width(), 12, 8));
  EXPECT_TRUE(same_bits(y, slice_rows(serial.outputs, mixer.output_width(), 12, 8)));
}

}  // namespace
}  // namespace tensorfold::testing
