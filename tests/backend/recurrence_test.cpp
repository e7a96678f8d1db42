// Every recurrence keeps the law: its bits come from double-precision mathematics, and from nothing but the path.
#include <functional>

#include <gtest/gtest.h>

#include "backend/delta_mixer.h"
#include "backend/kimi_mixer.h"
#include "backend/mamba_mixer.h"

namespace tensorfold::testing {
namespace {

using Mixers = std::vector<std::unique_ptr<Mixer>>;

struct Recurrence {
  const char* name;
  Mixers (*make)(Random& random);
};

Mixers gated_deltas(Random& random) {
  Mixers mixers;
  const GatedDeltaShape shapes[] = {{.key_heads = 2, .value_heads = 6, .key_dim = 32, .value_dim = 48, .kernel = 4},
                                    {.key_heads = 1, .value_heads = 1, .key_dim = 20, .value_dim = 9, .kernel = 3},
                                    {.key_heads = 2, .value_heads = 2, .key_dim = 128, .value_dim = 128, .kernel = 4}};
  for (const GatedDeltaShape& shape : shapes)
    mixers.push_back(std::make_unique<DeltaMixer>(shape, random, shape.key_dim == 32));
  return mixers;
}

Mixers mamba2s(Random& random) {
  Mixers mixers;
  const Mamba2Shape shapes[] = {{.heads = 6, .head_dim = 24, .state = 32, .groups = 2, .kernel = 4},
                                {.heads = 1, .head_dim = 9, .state = 20, .groups = 1, .kernel = 3},
                                {.heads = 4, .head_dim = 64, .state = 128, .groups = 4, .kernel = 4}};
  for (const Mamba2Shape& shape : shapes)
    mixers.push_back(std::make_unique<MambaMixer>(shape, random, shape.heads == 6 ? 0.4F : 0.0F));
  return mixers;
}

Mixers kimi_deltas(Random& random) {
  Mixers mixers;
  const KimiDeltaShape shapes[] = {{.heads = 3, .dim = 32, .kernel = 4},
                                   {.heads = 1, .dim = 20, .kernel = 3},
                                   {.heads = 2, .dim = 128, .kernel = 4}};
  for (const KimiDeltaShape& shape : shapes) mixers.push_back(std::make_unique<KimiMixer>(shape, random));
  return mixers;
}

class EveryRecurrence : public ::testing::TestWithParam<Recurrence> {
 protected:
  Random random_{21};
  Mixers mixers_ = GetParam().make(random_);
};

TEST_P(EveryRecurrence, MatchesDoublePrecision) {
  for (const auto& mixer : mixers_) {
    const std::vector<float> rows = random_floats(random_, 60 * mixer->input_width());
    // Relative to outputs of a gated norm (about 1): states forget, so errors stay near one row's.
    EXPECT_TRUE(close_to(run_serially(worlds().back(), *mixer, rows, 1).outputs, mixer->reference(rows), 2e-3, 1e-3));
  }
}

TEST_P(EveryRecurrence, ChunksWindowsNeighboursAndThreadsChangeNoBits) {
  for (const auto& mixer : mixers_) {
    const int64_t total = random_integer(random_, 90, 130);
    const std::vector<float> rows[] = {random_floats(random_, total * mixer->input_width()),
                                       random_floats(random_, total * mixer->input_width())};
    const SerialRun serial[] = {run_serially(worlds().back(), *mixer, rows[0], 64),
                                run_serially(worlds().back(), *mixer, rows[1], 64)};
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      expect_serial_bits(world, *mixer, random_, 64, rows, serial);
    }
  }
}

TEST_P(EveryRecurrence, TreeNodesHaveTheBitsOfTheirPath) {
  for (const auto& mixer : mixers_) {
    for (const World& world : worlds()) {
      SCOPED_TRACE(describe(world));
      expect_tree_bits(world, *mixer, random_, 64, static_cast<int32_t>(random_integer(random_, 1, 20)), 14);
    }
  }
}

TEST_P(EveryRecurrence, CopiedAndRestoredStatesContinueWithTheSameBits) {
  Mixer& mixer = *mixers_.front();
  const std::vector<float> rows = random_floats(random_, 20 * mixer.input_width());
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

INSTANTIATE_TEST_SUITE_P(Recurrences, EveryRecurrence,
                         ::testing::Values(Recurrence{"GatedDelta", gated_deltas}, Recurrence{"Mamba2", mamba2s},
                                           Recurrence{"KimiDelta", kimi_deltas}),
                         [](const auto& recurrence) { return recurrence.param.name; });

}  // namespace
}  // namespace tensorfold::testing
