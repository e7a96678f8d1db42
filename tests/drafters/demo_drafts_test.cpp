// The demonstration model's own drafters against what its trainer recorded (models/README.md).
#include <iostream>
#include <memory>
#include <numeric>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "drafters/dflash_drafter.h"
#include "drafters/mtp_drafter.h"
#include "families/checkpoint.h"
#include "families/sequence_runner.h"
#include "format/safetensors_store.h"
#include "shared_data.h"

namespace tensorfold::drafters {
namespace {

using testing::SequenceRunner;

constexpr int32_t kMostRows = 256;
constexpr int32_t kPageTokens = 16;
constexpr int32_t kMostTokens = 512;

// What a drafter made of every reply position of a case.
struct CaseDrafts {
  std::vector<int32_t> reply;
  std::vector<std::vector<int32_t>> recorded;
  std::vector<Draft> drafts;  ///< drafts[p]: proposed while reply token p was pending
};

class DemoDrafts : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    backend_ = backend::make_cpu_backend(0);
    loaded_ = families::load_model(testing::project_path("models/demo"), *backend_, kMostRows);
    cases_ =
        nlohmann::json::parse(read_text_file(testing::project_path("models/demo/golden_replies.json"), 10'000'000));
  }
  static void TearDownTestSuite() {
    loaded_ = {};
    backend_.reset();
  }

  // Teacher-forces a case through target and drafter, as the engine does: absorb what was kept, then propose.
  static CaseDrafts play(const nlohmann::json& recorded, Drafter& drafter, int32_t most) {
    CaseDrafts result;
    result.reply = recorded["reply_ids"].get<std::vector<int32_t>>();
    result.recorded = recorded["dflash2_drafts"].get<std::vector<std::vector<int32_t>>>();
    auto context = recorded["prompt_ids"].get<std::vector<int32_t>>();
    SequenceRunner runner(*backend_, *loaded_.model, kMostTokens, drafter.wants().tap_layers, kPageTokens);
    const auto cache =
        backend_->make_cache(drafter.cache_layout(), {kPageTokens, kMostTokens / kPageTokens, 1, kMostRows});
    drafter.attach(cache.get());
    drafter.open(0, context, 0);
    std::vector<int32_t> fed = context;
    for (size_t p = 0; p < result.recorded.size(); ++p) {
      const auto first = static_cast<int32_t>(context.size() - fed.size());
      runner.feed(fed, false);
      context.push_back(result.reply[p]);
      std::vector<int32_t> rows(fed.size());
      std::iota(rows.begin(), rows.end(), 0);
      const std::span<const int32_t> next = std::span<const int32_t>(context).subspan(static_cast<size_t>(first) + 1);
      const KeptRows kept{0, first, rows, next, runner.pages()};
      drafter.absorb({&kept, 1}, runner.hidden(), runner.taps());
      const DraftRequest request{0, context, most, {}, runner.pages()};
      result.drafts.emplace_back();
      drafter.propose({&request, 1}, {&result.drafts.back(), 1});
      fed = {result.reply[p]};
    }
    drafter.close(0);
    return result;
  }

  static inline std::unique_ptr<backend::Backend> backend_;
  static inline families::LoadedModel loaded_;
  static inline nlohmann::json cases_;
};

TEST_F(DemoDrafts, DflashWalksTheRecordedDrafts) {
  const auto directory = testing::project_path("models/demo-dflash2");
  const auto store = format::SafetensorsStore::open_directory(directory);
  const auto config = nlohmann::json::parse(read_text_file(directory / "config.json", 1'000'000));
  DflashDrafter drafter(*backend_, *loaded_.model, config, *store, {.bits = 0, .tree = false, .weights = {}});
  int positions = 0;
  int accepted = 0;
  int different = 0;
  for (size_t number = 0; number < cases_.size(); ++number) {
    const CaseDrafts played = play(cases_[number], drafter, 7);
    for (size_t p = 0; p < played.drafts.size(); ++p) {
      const std::vector<int32_t>& tokens = played.drafts[p].tokens;
      ++positions;
      if (tokens != played.recorded[p]) {
        ++different;
        std::cout << "case " << number << " position " << p << " differs from the recorded walk\n";
      }
      size_t landed = 0;
      while (landed < tokens.size() && p + 1 + landed < played.reply.size() &&
             tokens[landed] == played.reply[p + 1 + landed])
        ++landed;
      accepted += static_cast<int>(landed);
    }
  }
  std::cout << positions << " positions, " << different << " walks differ, "
            << static_cast<double>(accepted) / positions << " drafts accepted a position\n";
  // The trainer ran in float32 with another summation order: only near-ties of the walk may differ.
  EXPECT_LE(different, positions / 100);
  EXPECT_GE(static_cast<double>(accepted) / positions, 3.85);
}

TEST_F(DemoDrafts, TheFirstMtpDraftIsTheNextToken) {
  ASSERT_NE(loaded_.model->draft_head(), nullptr);
  MtpDrafter drafter(*backend_, *loaded_.model, {.most = 3, .confidence = 0.0F});
  int positions = 0;
  int equal = 0;
  for (const nlohmann::json& recorded : cases_) {
    const CaseDrafts played = play(recorded, drafter, 3);
    for (size_t p = 0; p + 1 < played.reply.size() && p < played.drafts.size(); ++p) {
      ASSERT_EQ(played.drafts[p].tokens.size(), 3U);
      ++positions;
      if (played.drafts[p].tokens[0] == played.reply[p + 1]) ++equal;
    }
  }
  std::cout << equal << " of " << positions << " first drafts equal the next token\n";
  EXPECT_GE(equal, positions * 95 / 100);
}

}  // namespace
}  // namespace tensorfold::drafters
