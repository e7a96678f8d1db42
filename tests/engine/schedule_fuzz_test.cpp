// The law on small checkpoints: the schedule fuzzer finds nothing, meets every situation, and would find a breach.
#include "engine/schedule_fuzz.h"

#include "engine_fixture.h"

namespace tensorfold::engine {
namespace {

FuzzFactory factory(const std::string& directory, bool break_order = false) {
  return [directory, break_order](const FuzzWorld& world) {
    FuzzSubject subject;
    subject.backend = backend::make_cpu_backend(world.threads, world.simd, break_order);
    subject.model = families::load_model(tensorfold::testing::project_path(directory), *subject.backend, 256).model;
    return subject;
  };
}

constexpr double patience = 600;  // seconds: a sanitizer's build on a busy machine is many times slower
constexpr uint64_t enough = 501;

void expect_pass(const FuzzReport& report, bool has_states = true) {
  for (const std::string& line : report.first_mismatches) ADD_FAILURE() << line;
  for (const std::string& name : report.untouched()) ADD_FAILURE() << "never met: " << name;
  EXPECT_GE(report.compared_rows, enough);
  EXPECT_EQ(report.compared_states >= enough / 5, has_states);
  EXPECT_GE(report.compared_pages, enough / 5);
}

struct GoldenFamily {
  const char* name;
  bool has_states;  ///< recurrent ones
};

class GoldenCheckpoint : public ::testing::TestWithParam<GoldenFamily> {};

TEST_P(GoldenCheckpoint, KeepsTheLaw) {
  const std::string directory = std::string("tests/golden/") + GetParam().name + "/mlx4";
  const FuzzOptions options{.seconds = 6.0, .patience_seconds = patience, .enough = enough, .seed = 1};
  expect_pass(fuzz_schedules(factory(directory), options), GetParam().has_states);
}

INSTANTIATE_TEST_SUITE_P(ScheduleFuzz, GoldenCheckpoint,
                         ::testing::Values(GoldenFamily{"qwen3_5", true}, GoldenFamily{"nemotron_h", true},
                                           GoldenFamily{"gemma4", false}, GoldenFamily{"qwen4_exp", true},
                                           GoldenFamily{"glm5_next", true}),
                         [](const auto& family) { return std::string(family.param.name); });

TEST(ScheduleFuzz, DemonstrationModelKeepsTheLaw) {
  FuzzOptions options{.seconds = 12.0, .patience_seconds = patience, .enough = enough, .seed = 2};
  options.worlds = {{.threads = 1, .simd = ""}, {.threads = 2, .simd = "portable"}, {.threads = 3, .simd = ""}};
  expect_pass(fuzz_schedules(factory("models/demo"), options));
}

TEST(ScheduleFuzz, FindsADeliberateBreach) {
  const FuzzReport report = fuzz_schedules(factory("tests/golden/qwen3_5/mlx4", true), {.seconds = 1.0, .seed = 3});
  EXPECT_GT(report.mismatches, 0U);
  EXPECT_FALSE(report.first_mismatches.empty());
  EXPECT_FALSE(report.passed());
}

TEST(RowCheck, TurnsDraftsOffWhereRowsOfAWindowDiffer) {
  const auto backend = backend::make_cpu_backend(1, "", true);
  const auto loaded =
      families::load_model(tensorfold::testing::project_path("tests/golden/qwen3_5/mlx4"), *backend, 256);
  EngineOptions options = testing::small_options();
  options.context = 256;
  const auto engine = start_engine(*backend, *loaded.model, options);
  EXPECT_EQ(engine->status().window_rows, 1);
  EXPECT_NE(engine->status().drafts_off_reason, "");
}

}  // namespace
}  // namespace tensorfold::engine
