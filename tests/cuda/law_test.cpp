// The schedule fuzzer on the CUDA backend. TENSORFOLD_FUZZ_SECONDS: time for each subject (10).
#include <cstdlib>

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "engine/schedule_fuzz.h"
#include "families/checkpoint.h"
#include "shared_data.h"

namespace tensorfold::engine {
namespace {

constexpr int32_t kMostRows = 512;

void fuzz(const std::string& what, const std::function<families::LoadedModel(backend::Backend&)>& load) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no NVIDIA GPU";
  const char* seconds = std::getenv("TENSORFOLD_FUZZ_SECONDS");
  FuzzOptions options;
  options.seconds = seconds != nullptr ? std::atof(seconds) : 10.0;
  options.worlds = {{.threads = 1, .simd = ""}};
  const FuzzReport report = fuzz_schedules(
      [&](const FuzzWorld&) {
        FuzzSubject subject;
        subject.backend = backend::make_cuda_backend(0);
        subject.model = load(*subject.backend).model;
        return subject;
      },
      options);
  std::printf("%s: %llu rounds, %llu rows, %llu states and %llu pages compared, %llu mismatches\n", what.c_str(),
              static_cast<unsigned long long>(report.rounds), static_cast<unsigned long long>(report.compared_rows),
              static_cast<unsigned long long>(report.compared_states),
              static_cast<unsigned long long>(report.compared_pages),
              static_cast<unsigned long long>(report.mismatches));
  for (const auto& [name, count] : report.counters)
    std::printf("  %s: %llu\n", name.c_str(), static_cast<unsigned long long>(count));
  EXPECT_EQ(report.mismatches, 0U) << (report.first_mismatches.empty() ? "" : report.first_mismatches.front());
  EXPECT_GT(report.compared_rows, 1000U);
}

TEST(CudaLaw, GoldenCheckpoint) {
  fuzz("golden qwen3_5", [](backend::Backend& backend) {
    return families::load_model(testing::project_path("tests/golden/qwen3_5/mlx4"), backend, kMostRows);
  });
}

TEST(CudaLaw, DemonstrationModel) {
  fuzz("demonstration model", [](backend::Backend& backend) {
    return families::load_model(testing::project_path("models/demo"), backend, kMostRows);
  });
}

TEST(CudaLaw, TwoLayersOfTheRealWidths) {
  auto config =
      nlohmann::json::parse(read_text_file(testing::project_path("tests/golden/qwen3_5/mlx4/config.json"), 10'000'000));
  config["text_config"].update({{"hidden_size", 5120},
                                {"intermediate_size", 17408},
                                {"num_hidden_layers", 2},
                                {"layer_types", {"linear_attention", "full_attention"}},
                                {"num_attention_heads", 24},
                                {"num_key_value_heads", 4},
                                {"linear_num_key_heads", 16},
                                {"linear_num_value_heads", 48},
                                {"vocab_size", 4096},
                                {"mtp_num_hidden_layers", 0}});
  fuzz("two layers of the 27B",
       [&](backend::Backend& backend) { return families::load_synthetic(config, 5, backend, kMostRows); });
}

}  // namespace
}  // namespace tensorfold::engine
