// Weights with NaN in them agree with themselves bit for bit; nothing may take that for health.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "base/error.h"
#include "engine/schedule_fuzz.h"
#include "engine_fixture.h"
#include "families/edited_store.h"
#include "format/safetensors_store.h"

namespace tensorfold::engine {
namespace {

/// A golden checkpoint whose head has one scale that is no number: one logit of every row is NaN.
std::unique_ptr<families::Model> damaged_model(backend::Backend& backend) {
  const auto directory = tensorfold::testing::project_path("tests/golden/qwen3_5/mlx4");
  families::Checkpoint checkpoint = families::open_checkpoint(directory);
  tensorfold::testing::EditedStore store(*checkpoint.store);
  const std::string head = "language_model.lm_head.scales";
  auto scales = store.take(head);
  scales.bytes[0] = std::byte{0xC0};  // bf16 NaN
  scales.bytes[1] = std::byte{0x7F};
  store.put(head, scales.info.type, scales.info.shape, scales.bytes);
  return checkpoint.family->load(checkpoint.config.json, store, backend, 256);
}

TEST(DamagedWeights, AreRefusedWhenTheEngineStartsWithDraftsAndWithout) {
  const auto backend = backend::make_cpu_backend(1);
  const auto model = damaged_model(*backend);
  for (const bool drafts : {true, false}) {
    EngineOptions options;
    options.context = 256;
    options.memory_budget = uint64_t{1} << 30;
    options.drafts = drafts;
    try {
      start_engine(*backend, *model, options);
      ADD_FAILURE() << "started";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::corrupt_file);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("NaN or infinity"));
    }
  }
}

TEST(DamagedWeights, DoNotPassTheScheduleFuzzer) {
  const auto make = [](const FuzzWorld& world) {
    FuzzSubject subject;
    subject.backend = backend::make_cpu_backend(world.threads, world.simd);
    subject.model = damaged_model(*subject.backend);
    return subject;
  };
  EXPECT_THROW(fuzz_schedules(make, {.seconds = 0.5, .seed = 1, .long_story = 64}), Error);
}

}  // namespace
}  // namespace tensorfold::engine
