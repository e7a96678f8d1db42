// Every family's forward against logits, hidden rows, greedy ids and MTP logits that transformers computed in float32
// on random checkpoints in both layouts (tests/golden/<family>/README.md; the tolerances are theirs).
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "families/checkpoint.h"
#include "families/golden_file.h"
#include "shared_data.h"

namespace tensorfold::families {
namespace {

using testing::best_id;
using testing::GoldenFile;
using testing::Rows;
using testing::SequenceRunner;

constexpr int32_t kMostRows = 256;

struct GoldenCase {
  std::string family;
  std::string layout;
  int64_t layers;       ///< of which the file has hidden rows
  double tolerance;     ///< of logits
  int64_t streams = 1;  ///< of the residual; taps are their mean
};

std::optional<std::filesystem::path> checkpoint_path(const GoldenCase& golden) {
  if (golden.layout == "mlx4") return testing::project_path("tests/golden/" + golden.family + "/mlx4");
  return testing::shared_path("golden/" + golden.family + "/" + golden.layout);
}

double largest_difference(const Rows& actual, int64_t first, const Rows& expected) {
  double largest = 0.0;
  for (int64_t row = 0; row < expected.count(); ++row) {
    for (int64_t i = 0; i < expected.width; ++i) {
      const double difference = std::abs(static_cast<double>(actual.row(first + row)[static_cast<size_t>(i)]) -
                                         static_cast<double>(expected.row(row)[static_cast<size_t>(i)]));
      largest = difference > largest || std::isnan(difference) ? difference : largest;
    }
  }
  return largest;
}

/// Rows of [streams][width] become the mean of their streams.
Rows mean_of_streams(const Rows& rows, int64_t streams) {
  Rows mean{rows.width, {}};
  for (int64_t row = 0; row < rows.count(); row += streams) {
    for (size_t i = 0; i < static_cast<size_t>(rows.width); ++i) {
      double sum = 0.0;
      for (int64_t s = 0; s < streams; ++s) sum += static_cast<double>(rows.row(row + s)[i]);
      mean.values.push_back(static_cast<float>(sum / static_cast<double>(streams)));
    }
  }
  return mean;
}

double root_mean_square(const Rows& rows) {
  double sum = 0.0;
  for (const float value : rows.values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum / static_cast<double>(rows.values.size()));
}

class Golden : public ::testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    const auto path = checkpoint_path(GetParam());
    if (!path) GTEST_SKIP() << "no shared folder with golden/" << GetParam().family << "/" << GetParam().layout;
    backend_ = backend::make_cpu_backend(0);
    model_ = load_model(*path, *backend_, kMostRows).model;
  }
  std::string name(const std::string& tail) const { return GetParam().layout + "." + tail; }

  GoldenFile golden_{testing::project_path("tests/golden/" + GetParam().family + "/golden.safetensors")};
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<Model> model_;
};

TEST_P(Golden, LogitsOfAllPrompts) {
  for (const char* prompt : {"0", "1", "2"}) {
    const std::vector<int32_t> ids = golden_.ids(std::string("hf.") + prompt + ".input_ids");
    const Rows expected = golden_.rows(name(std::string(prompt) + ".logits"));
    SequenceRunner runner(*backend_, *model_, kMostRows);
    const Rows logits = runner.feed(ids);
    const double difference = largest_difference(logits, logits.count() - expected.count(), expected);
    RecordProperty(std::string("largest_difference_") + prompt, std::to_string(difference));
    EXPECT_LT(difference, GetParam().tolerance) << "prompt " << prompt;
  }
}

TEST_P(Golden, LogitsInChunksAndSingleTokens) {
  const std::vector<int32_t> ids = golden_.ids("hf.1.input_ids");
  const Rows expected = golden_.rows(name("1.logits"));
  SequenceRunner runner(*backend_, *model_, kMostRows, {}, 7);
  Rows logits{expected.width, {}};
  for (size_t done = 0; done < ids.size();) {
    const size_t count = done < 40 ? std::min<size_t>(13, 40 - done) : 1;
    const Rows part = runner.feed(std::span(ids).subspan(done, count));
    logits.values.insert(logits.values.end(), part.values.begin(), part.values.end());
    done += count;
  }
  EXPECT_LT(largest_difference(logits, 0, expected), GetParam().tolerance);
}

TEST_P(Golden, HiddenRowsLayerByLayer) {
  if (GetParam().layout != "hf") GTEST_SKIP() << "the golden file has hidden rows of hf/ only";
  std::vector<int32_t> taps(static_cast<size_t>(GetParam().layers));
  std::iota(taps.begin(), taps.end(), 0);
  SequenceRunner runner(*backend_, *model_, kMostRows, taps);
  runner.feed(golden_.ids("hf.1.input_ids"));
  for (int64_t layer = 0; layer < GetParam().layers; ++layer) {
    const Rows expected = mean_of_streams(golden_.rows("hf.1.hidden." + std::to_string(layer)), GetParam().streams);
    EXPECT_LT(largest_difference(runner.read_tap(layer), 0, expected), 5e-4 * root_mean_square(expected)) << layer;
  }
}

TEST_P(Golden, TapsMayComeInAnyOrderAndRepeat) {
  SequenceRunner ordered(*backend_, *model_, kMostRows, {0, 1, 2, 3});
  SequenceRunner shuffled(*backend_, *model_, kMostRows, {3, 0, 3});
  const std::vector<int32_t> ids = golden_.ids("hf.0.input_ids");
  ordered.feed(ids);
  shuffled.feed(ids);
  EXPECT_EQ(shuffled.read_tap(0).values, ordered.read_tap(3).values);
  EXPECT_EQ(shuffled.read_tap(1).values, ordered.read_tap(0).values);
  EXPECT_EQ(shuffled.read_tap(2).values, ordered.read_tap(3).values);
}

TEST_P(Golden, GreedyIds) {
  const std::vector<int32_t> expected = golden_.ids(name("greedy"));
  SequenceRunner runner(*backend_, *model_, kMostRows);
  std::vector<int32_t> reply;
  Rows logits = runner.feed(golden_.ids("hf.1.input_ids"), false);
  while (reply.size() < expected.size()) {
    reply.push_back(best_id(logits.row(0)));
    logits = runner.feed(std::span(&reply.back(), 1), false);
  }
  EXPECT_EQ(reply, expected);
}

TEST_P(Golden, MtpLogits) {
  if (!golden_.has(name("mtp.1.logits"))) GTEST_SKIP() << "this family has no MTP head";
  const std::vector<int32_t> ids = golden_.ids("hf.1.input_ids");
  const Rows expected = golden_.rows(name("mtp.1.logits"));
  SequenceRunner runner(*backend_, *model_, kMostRows);
  runner.feed(ids);
  DraftHead* head = model_->draft_head();
  ASSERT_NE(head, nullptr);
  const auto cache = backend_->make_cache(head->cache_layout(), {16, 8, 0, kMostRows});
  const backend::OwnedTensor logits = backend_->allocate(kMostRows, model_->info().vocabulary_size);
  const backend::OwnedTensor chained = backend_->allocate(kMostRows, model_->info().hidden_width());
  const std::vector<int32_t> pages = {3, 1, 0, 2, 4};
  backend::Plan plan;
  plan.begin_sequence(0, -1, pages, true);
  for (int32_t entry = 0; entry + 1 < static_cast<int32_t>(ids.size()); ++entry) {
    plan.add_row(ids[static_cast<size_t>(entry) + 1], entry, entry - 1, true);
  }
  backend_->run(plan, 2, [&] { head->forward(plan, *cache, runner.hidden(), chained, logits); });
  const Rows actual = testing::read_rows(*backend_, logits, plan.rows());
  EXPECT_LT(largest_difference(actual, actual.count() - expected.count(), expected), GetParam().tolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Families, Golden,
    ::testing::Values(GoldenCase{"qwen3_5", "mlx4", 4, 1e-3}, GoldenCase{"qwen3_5", "hf", 4, 1e-3},
                      GoldenCase{"nemotron_h", "mlx4", 5, 1e-3}, GoldenCase{"nemotron_h", "hf", 5, 1e-3},
                      GoldenCase{"gemma4", "mlx4", 4, 2e-3}, GoldenCase{"gemma4", "hf", 4, 2e-3},
                      GoldenCase{"qwen4_exp", "mlx4", 4, 1e-3, 4}, GoldenCase{"qwen4_exp", "hf", 4, 1e-3, 4},

                      GoldenCase{"glm5_next", "mlx4", 4, 1e-3, 4}, GoldenCase{"glm5_next", "hf", 4, 1e-3, 4}),
    [](const auto& golden) { return golden.param.family + "_" + golden.param.layout; });

}  // namespace
}  // namespace tensorfold::families
