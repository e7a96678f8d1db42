#include "engine/cost_calibration.h"

#include <algorithm>

namespace tensorfold::engine {
namespace {

constexpr int32_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64};
constexpr int32_t draft_counts[] = {1, 2, 3, 4, 6, 8, 12, 16};
constexpr int32_t passes = 3;
constexpr int32_t most_kept = 4;
constexpr int32_t most_tokens = 256;
// Seconds for all of it, over every run; a round slower than this is not tried, since a request would wait for it.
constexpr double most_seconds = 2.0;
constexpr double longest_round = 0.5;
// Interrupted so often, it gives up: rounds refresh the costs anyway.
constexpr int32_t most_runs = 8;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

void CostCalibration::keep_rows(const Sequence& sequence, int32_t first, int32_t count) {
  std::vector<int32_t> rows;
  for (int32_t row = 0; row < count; ++row) rows.push_back(forward_.first_row(0) + row);
  const drafters::KeptRows kept{
      .lane = sequence.lane_index,
      .first_position = first,
      .rows = rows,
      .next_tokens =
          std::span<const int32_t>(sequence.tokens).subspan(static_cast<size_t>(first) + 1, static_cast<size_t>(count)),
      .pages = sequence.lane.pages};
  drafts_.absorb(std::span(&kept, 1), forward_.hidden(), forward_.taps());
}

void CostCalibration::feed(Sequence& sequence) {
  while (sequence.rows_left() > 1) {
    const int32_t first = sequence.lane.committed;
    const int32_t rows = std::min(sequence.rows_left() - 1, forward_.most_rows());
    const Window window{
        .lane = &sequence.lane,
        .tokens =
            std::span<const int32_t>(sequence.tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(rows)),
        .past = std::span<const int32_t>(sequence.tokens).first(static_cast<size_t>(first)),
        .parents = {},
        .keep_all = true,
        .logits = WantedLogits::none};
    forward_.run(std::span(&window, 1));
    sequence.lane.committed += rows;
    keep_rows(sequence, first, rows);
  }
}

double CostCalibration::measure(Sequence& sequence, std::span<const int32_t> drafts, int32_t rows) {
  std::vector<int32_t> tokens = {sequence.tokens.back()};
  tokens.insert(tokens.end(), drafts.begin(), drafts.end());
  for (size_t i = 0; tokens.size() < static_cast<size_t>(rows); ++i) {
    tokens.push_back(sequence.tokens[i % sequence.tokens.size()]);
  }
  const bool single = rows == 1;
  const auto committed = static_cast<size_t>(sequence.lane.committed);
  const Window window{.lane = &sequence.lane,
                      .tokens = tokens,
                      .past = std::span<const int32_t>(sequence.tokens).first(committed),
                      .parents = {},
                      .keep_all = single,
                      .logits = WantedLogits::all};
  std::vector<backend::DrawRow> draws(static_cast<size_t>(rows));
  std::vector<backend::Drawn> drawn(draws.size());
  const int32_t kept = std::min((rows + 1) / 2, most_kept);
  const Clock::time_point start = Clock::now();
  forward_.run(std::span(&window, 1));
  for (int32_t row = 0; row < rows; ++row) {
    draws[static_cast<size_t>(row)].logit_row = forward_.logit_row(0, row);
    draws[static_cast<size_t>(row)].position = sequence.size() + row;
  }
  forward_.draw(draws, drawn);
  if (!single) {
    backend::KeptPath path{.sequence = 0, .rows = {}};
    for (int32_t row = 0; row < kept; ++row) path.rows.push_back(row);
    forward_.commit(std::span(&path, 1));
  }
  const double seconds = seconds_since(start);
  const int32_t first = sequence.lane.committed;
  sequence.lane.committed += kept;
  sequence.tokens.insert(sequence.tokens.end(), tokens.begin() + 1, tokens.begin() + kept);
  sequence.tokens.push_back(drawn[static_cast<size_t>(kept) - 1].token);
  keep_rows(sequence, first, kept);
  return seconds;
}

bool CostCalibration::ends(const std::function<bool()>& stop) {
  interrupted_ = interrupted_ || spent_ > most_seconds || stop();
  return interrupted_;
}

void CostCalibration::measure_forwards(Sequence& sequence, const std::function<bool()>& stop) {
  for (const int32_t rows : row_counts) {
    if (rows > window_rows_) break;
    for (int32_t times = 0; times < (rows <= 8 ? 3 : 1); ++times) {
      if (ends(stop) || !pool_.reserve(sequence.lane, sequence.size() + rows)) return;
      const double seconds = measure(sequence, {}, rows);
      const auto [place, added] = fastest_.try_emplace(rows, seconds);
      if (!added) place->second = std::min(place->second, seconds);
      spent_ += seconds;
      if (seconds > longest_round) return;
    }
  }
}

void CostCalibration::measure_proposals(Sequence& sequence, int32_t drafter, const std::function<bool()>& stop) {
  int32_t widest = 0;
  for (const int32_t most : draft_counts) {
    if (most >= window_rows_) break;
    for (int32_t times = 0; times < 3; ++times) {
      if (ends(stop) || !pool_.reserve(sequence.lane, sequence.size() + most)) return;
      const Clock::time_point start = Clock::now();
      const drafters::Draft draft = drafts_.propose_for_calibration(sequence, drafter, most);
      const auto count = static_cast<int32_t>(draft.tokens.size());
      const double proposal = seconds_since(start);
      const double seconds = proposal + measure(sequence, draft.tokens, 1 + count);
      spent_ += seconds_since(start);
      widest = std::max(widest, count);
      // The first reads what waited.
      if (times == 0 || count == 0) continue;
      // The fastest, as of plain rounds: drafts that look too cheap are tried, and what they take is charged; drafts
      // that look too dear are never tried, and nobody learns what they take.
      const auto [place, added] = drafted_.try_emplace({drafter, count}, seconds);
      if (!added) place->second = std::min(place->second, seconds);
    }
    if (widest < most) return;
  }
}

void CostCalibration::run(std::span<const int32_t> tokens, const std::function<bool()>& stop) {
  if (done_ || tokens.size() < 2 || window_rows_ < 2) return;
  Sequence sequence;
  sequence.lane_index = 0;
  const size_t fed = std::min<size_t>(tokens.size(), most_tokens);
  sequence.request.prompt.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(fed));
  sequence.request.max_tokens = 1 << 20;
  sequence.tokens = sequence.request.prompt;
  interrupted_ = false;
  if (pool_.open(sequence.lane) && pool_.reserve(sequence.lane, sequence.size() + window_rows_)) {
    drafts_.open(sequence, 0);
    feed(sequence);
    for (int32_t pass = 0; pass < passes && !interrupted_; ++pass) {
      measure_forwards(sequence, stop);
      for (int32_t drafter = 0; drafter < drafts_.count(); ++drafter) {
        if (!drafts_.is_free(drafter)) measure_proposals(sequence, drafter, stop);
      }
    }
    done_ = !interrupted_ || spent_ > most_seconds;
    sequence.request.prompt = sequence.tokens;  // no reply whose length would count
    drafts_.close(sequence);
  }
  pool_.close(sequence.lane);
  done_ = done_ || ++runs_ >= most_runs;
  for (const auto& [rows, seconds] : fastest_) drafts_.calibrate_forward(rows, seconds);
  for (int32_t drafter = 0; drafter < drafts_.count(); ++drafter) {
    std::vector<drafters::ProposalCost> rounds;
    for (const auto& [which, seconds] : drafted_) {
      if (which.first == drafter) rounds.push_back({.drafts = which.second, .seconds = seconds});
    }
    drafts_.calibrate_rounds(drafter, rounds);
  }
}

}  // namespace tensorfold::engine
