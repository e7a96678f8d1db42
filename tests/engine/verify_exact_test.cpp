// verify-exact on the demonstration model: no reply differs.
#include "engine/verify_exact.h"

#include <random>

#include "drafters/drafter_set.h"
#include "engine_fixture.h"

namespace tensorfold::engine {
namespace {

VerifyReport verify(int32_t requests, uint64_t seed) {
  const FuzzFactory make = [](const FuzzWorld& world) {
    FuzzSubject subject;
    subject.backend = backend::make_cpu_backend(world.threads, world.simd);
    subject.model = families::load_model(tensorfold::testing::project_path("models/demo"), *subject.backend, 320).model;
    return subject;
  };
  std::vector<VerifyPrompt> prompts;
  for (const testing::GoldenCase& golden : testing::golden_cases()) prompts.push_back({"recorded", golden.prompt});
  const std::vector<VerifyDrafter> drafters = {{"own", [](backend::Backend& backend, families::Model& model) {
                                                  return drafters::make_drafters(backend, model, {});
                                                }}};
  VerifyOptions options;
  options.requests = requests;
  options.seed = seed;
  options.max_tokens = 24;
  options.most_neighbours = 5;
  options.context = 1024;
  options.memory_budget = uint64_t{256} << 20;
  options.worlds = {{.threads = 1, .simd = ""}, {.threads = 2, .simd = ""}};
  std::random_device device;
  options.scratch = std::filesystem::temp_directory_path() / fmt::format("tensorfold-verify-{:08x}", device());
  const VerifyReport report = verify_exact(make, prompts, drafters, options);
  std::error_code ignored;
  std::filesystem::remove_all(options.scratch, ignored);
  return report;
}

TEST(VerifyExact, NoReplyDiffers) {
  const VerifyReport report = verify(40, 4);
  EXPECT_GE(report.requests, 40);
  EXPECT_EQ(report.differences, 0);
  for (const std::string& line : report.first_differences) ADD_FAILURE() << line;
  EXPECT_GT(report.accepted, 0U);
  EXPECT_GT(report.cached_tokens, 0U);
}

}  // namespace
}  // namespace tensorfold::engine
