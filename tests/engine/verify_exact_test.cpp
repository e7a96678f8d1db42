// verify-exact on the demonstration model and on every family's golden checkpoint: no reply differs.
#include "engine/verify_exact.h"

#include <random>

#include "drafters/drafter_set.h"
#include "engine/verify_serving.h"
#include "engine_fixture.h"

namespace tensorfold::engine {
namespace {

FuzzFactory factory(const std::string& checkpoint) {
  return [checkpoint](const FuzzWorld& world) {
    FuzzSubject subject;
    subject.backend = backend::make_cpu_backend(world.threads, world.simd);
    subject.model = families::load_model(tensorfold::testing::project_path(checkpoint), *subject.backend, 320).model;
    return subject;
  };
}

std::vector<VerifyPrompt> recorded_prompts() {
  std::vector<VerifyPrompt> prompts;
  for (const testing::GoldenCase& golden : testing::golden_cases()) prompts.push_back({"recorded", golden.prompt});
  return prompts;
}

std::vector<VerifyDrafter> own_drafters() {
  return {{"own", [](backend::Backend& backend, families::Model& model) {
             return drafters::make_drafters(backend, model, {});
           }}};
}

VerifyOptions options_for(int32_t requests, uint64_t seed) {
  VerifyOptions options;
  options.requests = requests;
  options.seed = seed;
  options.max_tokens = 24;
  options.most_neighbours = 5;
  options.context = 1024;
  options.memory_budget = uint64_t{256} << 20;
  options.worlds = {{.threads = 1, .simd = ""}, {.threads = 2, .simd = ""}};
  return options;
}

VerifyReport verify(const std::string& checkpoint, const std::vector<VerifyPrompt>& prompts, int32_t requests,
                    uint64_t seed) {
  VerifyOptions options = options_for(requests, seed);
  std::random_device device;
  options.scratch = std::filesystem::temp_directory_path() / fmt::format("tensorfold-verify-{:08x}", device());
  const VerifyReport report = verify_exact(factory(checkpoint), prompts, own_drafters(), options);
  std::error_code ignored;
  std::filesystem::remove_all(options.scratch, ignored);
  return report;
}

void expect_exact(const VerifyReport& report, int32_t requests) {
  EXPECT_GE(report.requests, requests);
  EXPECT_EQ(report.differences, 0);
  for (const std::string& line : report.first_differences) ADD_FAILURE() << line;
  EXPECT_GT(report.accepted, 0U);
  EXPECT_GT(report.cached_tokens, 0U);
}

TEST(VerifyExact, NoReplyDiffers) { expect_exact(verify("models/demo", recorded_prompts(), 40, 4), 40); }

TEST(VerifyExact, SixtyRequestsMeetEverythingWithAnySeed) {
  const std::string checkpoint = "tests/golden/qwen3_5/mlx4";
  std::vector<VerifyPrompt> prompts;
  for (const int32_t size : {5, 30, 61}) {
    prompts.push_back({fmt::format("{} ids", size), std::vector<int32_t>(static_cast<size_t>(size))});
    for (int32_t i = 0; i < size; ++i) prompts.back().tokens[static_cast<size_t>(i)] = 7 + i * size % 400;
  }
  std::random_device device;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{4242}, uint64_t{device()}}) {
    VerifyOptions options = options_for(requests_that_meet_all, seed);
    options.max_tokens = 4;
    options.most_neighbours = 7;
    options.scratch = std::filesystem::temp_directory_path() / fmt::format("tensorfold-verify-{:08x}", device());
    // A model of its own stands in for the restarted process.
    options.serve_elsewhere = [&](const VerifyServing& serving) {
      FuzzSubject subject = factory(checkpoint)(options.worlds[serving.world]);
      return serve(subject, own_drafters(), options, serving);
    };
    const VerifyReport report = verify_exact(factory(checkpoint), prompts, own_drafters(), options);
    EXPECT_EQ(report.differences, 0);
    EXPECT_EQ(report.never_met(), std::vector<std::string>()) << "seed " << seed;
  }
}

TEST(VerifyExact, AWrongExpectationIsFound) {
  VerifyReport report;
  const VerifyQuestion question{.kind = "any", .prompt = {1, 2}, .sampling = {}, .expected = {3, 4, 5}};
  VerifyAnswer answer;
  const auto compare = [&](std::vector<int32_t> tokens, std::string error) {
    answer.tokens = std::move(tokens);
    answer.error = std::move(error);
    compare_answer(report, question, answer, "");
  };
  compare({3, 4, 5}, "");
  EXPECT_EQ(report.differences, 0);
  compare({3, 9, 5}, "");
  compare({3, 4}, "");
  compare({3, 4, 5}, "lost");
  EXPECT_EQ(report.differences, 3);
  EXPECT_EQ(report.requests, 4);
}

TEST(VerifyExact, GoesOnFromEveryPoint) {
  VerifyOptions options = options_for(0, 1);
  options.max_tokens = 8;
  const std::vector<VerifyPrompt> prompts = {recorded_prompts()[4], recorded_prompts()[0]};
  const VerifyReport report = verify_every_point(factory("models/demo"), prompts, own_drafters(), options, 1);
  EXPECT_EQ(report.differences, 0);
  for (const std::string& line : report.first_differences) ADD_FAILURE() << line;
  EXPECT_GT(report.requests, 40);
  EXPECT_GT(report.cached_tokens, 40U * 20U);
}

class EveryFamily : public ::testing::TestWithParam<const char*> {};

// Random weights accept almost nothing from their own head: the scripted drafters are what is kept here.
TEST_P(EveryFamily, NoReplyDiffers) {
  std::mt19937 random(6);
  std::vector<VerifyPrompt> prompts;
  for (const size_t size : {3, 17, 40, 90}) {
    VerifyPrompt prompt{"random ids", std::vector<int32_t>(size)};
    for (int32_t& token : prompt.tokens) token = static_cast<int32_t>(random() % 512);
    prompts.push_back(std::move(prompt));
  }
  expect_exact(verify(std::string("tests/golden/") + GetParam() + "/mlx4", prompts, 24, 5), 24);
}

INSTANTIATE_TEST_SUITE_P(VerifyExact, EveryFamily,
                         ::testing::Values("qwen3_5", "nemotron_h", "gemma4", "qwen4_exp", "glm5_next"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace tensorfold::engine
