#include "cli/bench_runner.h"

#include <algorithm>

namespace tensorfold::cli {
namespace {

constexpr int32_t kPageTokens = 64;

}  // namespace

BenchRunner::BenchRunner(backend::Backend& backend, families::Model& model, int32_t streams, int32_t most_tokens,
                         int32_t prompt_rows)
    : backend_(backend),
      model_(model),
      prompt_rows_(std::min(prompt_rows, model.max_rows())),
      logits_(backend.allocate(std::max(streams, most_window), model.info().vocabulary_size)) {
  const int32_t pages = (most_tokens + kPageTokens - 1) / kPageTokens;
  cache_ = backend.make_cache(model.cache_layout(), {.page_tokens = kPageTokens,
                                                     .pages = pages * streams,
                                                     .state_slots = streams,
                                                     .window_rows = std::max(most_window, streams)});
  // Pages of a sequence lie apart, as they do after some time of serving.
  for (int32_t s = 0; s < streams; ++s) {
    std::vector<int32_t>& own = pages_.emplace_back();
    for (int32_t page = 0; page < pages; ++page) own.push_back(page * streams + s);
  }
  committed_.resize(static_cast<size_t>(streams));
  restart();
}

void BenchRunner::restart(int32_t committed) {
  for (size_t s = 0; s < pages_.size(); ++s) {
    committed_[s] = committed;
    backend_.clear_state(*cache_, static_cast<int32_t>(s));
  }
}

void BenchRunner::prefill(int32_t count) {
  while (count > 0) {
    const int32_t rows = std::min(count, prompt_rows_);
    forward(1, rows, true, rows == count ? 1 : 0);
    count -= rows;
  }
}

void BenchRunner::decode() { forward(static_cast<int32_t>(pages_.size()), 1, true, 1); }

void BenchRunner::round(int32_t rows) {
  const backend::Plan plan = forward(1, rows, false, rows);
  const backend::KeptPath kept{.sequence = 0, .rows = {0}};
  backend_.commit(plan, *cache_, std::span(&kept, 1));
  committed_[0] += 1;
}

int32_t BenchRunner::token_at(int32_t position) const {
  return static_cast<int32_t>((1000 + 37LL * position) % model_.info().vocabulary_size);
}

backend::Plan BenchRunner::forward(int32_t streams, int32_t rows, bool keep_all, int32_t wanted) {
  backend::Plan plan;
  for (int32_t s = 0; s < streams; ++s) {
    int32_t& committed = committed_[static_cast<size_t>(s)];
    std::vector<int32_t> past;
    for (int32_t p = std::max(0, committed - backend::kHistoryTokens); p < committed; ++p) past.push_back(token_at(p));
    plan.begin_sequence(committed, s, pages_[static_cast<size_t>(s)], keep_all, past);
    const int32_t first = plan.rows();
    for (int32_t row = 0; row < rows; ++row) {
      plan.add_row(token_at(committed + row), committed + row, row == 0 ? -1 : first + row - 1, row >= rows - wanted);
    }
    if (keep_all) committed += rows;
  }
  families::ForwardOutputs outputs;
  if (wanted > 0) outputs.logits = logits_.view;
  backend_.run(plan, static_cast<uint64_t>(wanted > 0), [&] { model_.forward(plan, *cache_, outputs); });
  std::vector<backend::DrawRow> draws(plan.logit_rows.size());
  for (size_t i = 0; i < draws.size(); ++i) draws[i].logit_row = static_cast<int32_t>(i);
  std::vector<backend::Drawn> drawn(draws.size());
  backend_.draw(plan, logits_.view, draws);
  backend_.read_draws(drawn);
  return plan;
}

}  // namespace tensorfold::cli
