// The trained demonstration model against recorded logits and greedy replies (models/README.md).
#include <cmath>
#include <iostream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "families/checkpoint.h"
#include "families/golden_file.h"
#include "shared_data.h"

namespace tensorfold::families {
namespace {

using testing::best_id;
using testing::Rows;
using testing::SequenceRunner;

constexpr int32_t kMostRows = 512;

class DemoModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    backend_ = backend::make_cpu_backend(0);
    loaded_ = load_model(testing::project_path("models/demo"), *backend_, kMostRows);
  }
  static void TearDownTestSuite() {
    loaded_ = {};
    backend_.reset();
  }
  static inline std::unique_ptr<backend::Backend> backend_;
  static inline LoadedModel loaded_;
};

TEST_F(DemoModel, LogitsOfRecordedCases) {
  const auto path = testing::shared_path("models/demo/golden_logits.safetensors");
  if (!path) GTEST_SKIP() << "no shared folder with models/demo/golden_logits.safetensors";
  const testing::GoldenFile golden(*path);
  for (const char* name : {"case1", "case2", "case8"}) {
    const Rows expected = golden.rows(std::string(name) + ".logits");
    const std::vector<int32_t> ids = golden.ids(std::string(name) + ".input_ids");
    SequenceRunner runner(*backend_, *loaded_.model, kMostRows);
    const Rows actual = runner.feed(ids);
    ASSERT_EQ(actual.values.size(), expected.values.size()) << name;
    double largest = 0.0;
    for (size_t i = 0; i < actual.values.size(); ++i) {
      largest =
          std::max(largest, std::abs(static_cast<double>(actual.values[i]) - static_cast<double>(expected.values[i])));
    }
    RecordProperty(std::string("largest_difference_") + name, std::to_string(largest));
    EXPECT_LT(largest, 1e-3) << name;
  }
}

TEST_F(DemoModel, GreedyRepliesOfAllCases) {
  const auto cases =
      nlohmann::json::parse(read_text_file(testing::project_path("models/demo/golden_replies.json"), 10'000'000));
  ASSERT_EQ(cases.size(), 18U);
  for (size_t number = 0; number < cases.size(); ++number) {
    const auto prompt = cases[number]["prompt_ids"].get<std::vector<int32_t>>();
    const auto expected = cases[number]["reply_ids"].get<std::vector<int32_t>>();
    SequenceRunner runner(*backend_, *loaded_.model, kMostRows);
    Rows logits = runner.feed(prompt, false);
    for (size_t i = 0; i < expected.size(); ++i) {
      const int32_t token = best_id(logits.row(0));
      if (token != expected[i]) {
        const float margin =
            logits.row(0)[static_cast<size_t>(token)] - logits.row(0)[static_cast<size_t>(expected[i])];
        ASSERT_LT(margin, 1e-3F) << "case " << number << " token " << i << ": " << token << " not " << expected[i];
        std::cout << "case " << number << " token " << i << " is a near-tie: " << token << " leads " << expected[i]
                  << " by " << margin << "\n";
      }
      logits = runner.feed(std::span(&expected[i], 1), false);
    }
    const auto& ends = loaded_.generation.end_tokens;
    const bool ended = std::find(ends.begin(), ends.end(), expected.back()) != ends.end();
    EXPECT_TRUE(ended || expected.size() == 160) << "case " << number;
  }
}

TEST_F(DemoModel, GenerationDefaultsComeFromBothFiles) {
  EXPECT_EQ(loaded_.generation.end_tokens, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(loaded_.model->info().end_tokens, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(loaded_.generation.temperature, 0.7);
  EXPECT_EQ(loaded_.generation.top_k, 20);
  EXPECT_TRUE(loaded_.model->info().draft_head);
}

}  // namespace
}  // namespace tensorfold::families
