// Whole models on the CUDA backend: golden logits within bf16's reach, the demonstration model's replies, and the bits
// of every way to feed a sequence.
#include <cmath>

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "families/checkpoint.h"
#include "families/golden_file.h"
#include "families/sequence_runner.h"
#include "shared_data.h"

namespace tensorfold::families {
namespace {

using testing::best_id;
using testing::GoldenFile;
using testing::Rows;
using testing::SequenceRunner;

class CudaModel : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no NVIDIA GPU";
    backend_ = backend::make_cuda_backend(0);
  }
  std::unique_ptr<backend::Backend> backend_;
};

/// Root mean square of the difference over that of the expected rows.
double relative_difference(const Rows& actual, int64_t first, const Rows& expected) {
  double error = 0.0;
  double size = 0.0;
  for (int64_t row = 0; row < expected.count(); ++row) {
    for (int64_t i = 0; i < expected.width; ++i) {
      const auto e = static_cast<double>(expected.row(row)[static_cast<size_t>(i)]);
      const double d = static_cast<double>(actual.row(first + row)[static_cast<size_t>(i)]) - e;
      error += d * d;
      size += e * e;
    }
  }
  return std::sqrt(error / size);
}

// Four layers of bf16 activations and weights: each product's inputs carry 2^-9 of rounding.
TEST_F(CudaModel, GoldenLogits) {
  const GoldenFile golden(testing::project_path("tests/golden/qwen3_5/golden.safetensors"));
  for (const std::string layout : {"mlx4", "hf"}) {
    const auto path = layout == "mlx4" ? std::optional(testing::project_path("tests/golden/qwen3_5/mlx4"))
                                       : testing::shared_path("golden/qwen3_5/hf");
    if (!path) continue;
    const LoadedModel loaded = load_model(*path, *backend_, 256);
    for (const std::string prompt : {"0", "1", "2"}) {
      const std::vector<int32_t> ids = golden.ids("hf." + prompt + ".input_ids");
      const Rows expected = golden.rows(layout + "." + prompt + ".logits");
      SequenceRunner runner(*backend_, *loaded.model, 256);
      const Rows logits = runner.feed(ids);
      const double difference = relative_difference(logits, logits.count() - expected.count(), expected);
      std::printf("%s prompt %s: %.4f of the logits' size\n", layout.c_str(), prompt.c_str(), difference);
      EXPECT_LT(difference, 0.02) << layout << " prompt " << prompt;
      SequenceRunner serial(*backend_, *loaded.model, 256);
      for (size_t i = 0; i < ids.size(); ++i) {
        const Rows one = serial.feed(std::span(ids).subspan(i, 1));
        ASSERT_TRUE(std::equal(one.values.begin(), one.values.end(), logits.row(static_cast<int64_t>(i)).begin()))
            << layout << " prompt " << prompt << " token " << i << ": one row's bits are not the prompt's";
      }
    }
  }
}

TEST_F(CudaModel, RepliesOfTheDemonstrationModel) {
  const LoadedModel loaded = load_model(testing::project_path("models/demo"), *backend_, 512);
  const auto cases =
      nlohmann::json::parse(read_text_file(testing::project_path("models/demo/golden_replies.json"), 10'000'000));
  size_t tokens = 0;
  size_t flips = 0;
  for (size_t number = 0; number < cases.size(); ++number) {
    const auto prompt = cases[number]["prompt_ids"].get<std::vector<int32_t>>();
    const auto expected = cases[number]["reply_ids"].get<std::vector<int32_t>>();
    SequenceRunner runner(*backend_, *loaded.model, 512);
    Rows logits = runner.feed(prompt, false);
    for (size_t i = 0; i < expected.size(); ++i, ++tokens) {
      const int32_t token = best_id(logits.row(0));
      if (token != expected[i]) {
        // The recorded replies are float32's; bf16 may flip a near-tie.
        const float margin =
            logits.row(0)[static_cast<size_t>(token)] - logits.row(0)[static_cast<size_t>(expected[i])];
        EXPECT_LT(margin, 0.25F) << "case " << number << " token " << i;
        flips += 1;
      }
      logits = runner.feed(std::span(&expected[i], 1), false);
    }
  }
  std::printf("%zu of %zu reply tokens were near-ties that bf16 decided otherwise\n", flips, tokens);
  EXPECT_LT(static_cast<double>(flips), 0.02 * static_cast<double>(tokens));
}

}  // namespace
}  // namespace tensorfold::families
