#include "cli/bench_drafting.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <future>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "drafters/drafter_set.h"
#include "drafters/synthetic_drafter.h"
#include "engine/engine.h"
#include "format/json_file.h"

namespace tensorfold::cli {
namespace {

constexpr int32_t kPromptTokens = 200;
constexpr int32_t kReplies = 5;

std::vector<std::unique_ptr<drafters::Drafter>> one_drafter(backend::Backend& backend, families::Model& model,
                                                            const DraftingBench& bench) {
  drafters::DrafterChoice choice;
  choice.copies = false;
  choice.mtp_options.confidence = 0.0F;
  if (bench.drafts > 0) choice.mtp_options.most = bench.drafts;
  if (bench.drafter.empty()) {
    if (model.draft_head() == nullptr)
      fail(ErrorKind::invalid_request, "the model has no draft head; --drafter names another drafter");
    return drafters::make_drafters(backend, model, choice);
  }
  if (std::filesystem::is_directory(bench.drafter)) {
    choice.block_drafter = bench.drafter;
    return drafters::make_drafters(backend, model, choice);
  }
  format::ProblemList problems;
  const nlohmann::json config = format::read_json_object(bench.drafter, uint64_t{1} << 20, problems);
  problems.throw_if_any(ErrorKind::corrupt_file, bench.drafter);
  const auto store = drafters::make_synthetic_drafter(drafters::read_dflash_config(config, model.info()),
                                                      model.info().vocabulary_size, 7);
  std::vector<std::unique_ptr<drafters::Drafter>> made;
  made.push_back(std::make_unique<drafters::DflashDrafter>(backend, model, config, *store, drafters::DflashOptions{}));
  return made;
}

engine::ReplyStatistics reply(engine::Engine& engine, int32_t tokens, int64_t vocabulary, bool draft) {
  engine::Request request;
  for (int32_t i = 0; i < kPromptTokens; ++i)
    request.prompt.push_back(static_cast<int32_t>((1000 + 37LL * i) % vocabulary));
  request.max_tokens = tokens;
  request.draft = draft;
  std::promise<engine::ReplyResult> finished;
  request.on_finish = [&](const engine::ReplyResult& result) { finished.set_value(result); };
  engine.submit(std::move(request));
  const engine::ReplyResult result = finished.get_future().get();
  if (result.reason == engine::FinishReason::failed) fail(ErrorKind::internal, "a reply failed: {}", result.error);
  return result.statistics;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

nlohmann::json measure_drafting(backend::Backend& backend, families::Model& model, const DraftingBench& bench) {
  auto drafters = one_drafter(backend, model, bench);
  const std::string name(drafters.front()->name());
  engine::EngineOptions options;
  options.context = 1024;
  options.parallel = 1;
  options.prefill_rows = std::min(options.prefill_rows, model.max_rows() / 2);
  options.fixed_drafts = bench.drafts > 0 ? bench.drafts : options.window_rows - 1;
  options.memory_budget = uint64_t{6} << 30;
  const auto engine = engine::start_engine(backend, model, options, std::move(drafters));
  if (const std::string off = engine->status().drafts_off_reason; !off.empty())
    fail(ErrorKind::unsupported, "drafts are off: {}", off);
  std::vector<double> drafted;
  std::vector<double> serial;
  double rows = 0.0;
  double accepted = 0.0;
  for (int32_t i = 0; i <= kReplies; ++i) {
    for (const bool draft : {false, true}) {
      const engine::ReplyStatistics statistics = reply(*engine, bench.tokens, model.info().vocabulary_size, draft);
      if (i == 0) continue;  // what is recorded once a kind
      // The first token comes with the prompt's last row.
      const double rounds = std::max(statistics.rounds - 1, 1);
      (draft ? drafted : serial).push_back(statistics.decode_seconds / rounds);
      if (!draft) continue;
      rows = 1.0 + statistics.drafted / rounds;
      accepted = statistics.accepted / rounds;
    }
  }
  const auto rounded = [](double value) { return std::round(value * 1000.0) / 1000.0; };
  return {{"drafter", name},
          {"rows", rounded(rows)},
          {"milliseconds", rounded(median(drafted) * 1e3)},
          {"serial_milliseconds", rounded(median(serial) * 1e3)},
          {"cost", rounded(median(drafted) / median(serial))},
          {"accepted_a_round", rounded(accepted)}};
}

}  // namespace tensorfold::cli
