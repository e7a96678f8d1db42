#include "engine/draft_planner.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "engine/forward.h"

namespace tensorfold::engine {
namespace {

// Believed chance of a draft before anything was measured.
constexpr double prior_chance = 0.7;
// Rows a lane that a drafter reads round after round: its accepted window. More are a prompt, or plain rounds.
constexpr int32_t steady_rows = 16;
constexpr double most_dearer = 1.6;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

void cut_draft(drafters::Draft& draft, size_t rows) {
  if (draft.tokens.size() <= rows) return;
  draft.tokens.resize(rows);
  if (!draft.parents.empty()) draft.parents.resize(rows);
  if (!draft.confidence.empty()) draft.confidence.resize(rows);
}

DraftPlanner::DraftPlanner(std::vector<std::unique_ptr<drafters::Drafter>> drafters, int32_t fixed_drafts)
    : drafters_(std::move(drafters)), fixed_drafts_(fixed_drafts) {
  for (const auto& drafter : drafters_) {
    const drafters::TargetOutputs wants = drafter->wants();
    free_.push_back(!wants.hidden && wants.tap_layers.empty() && drafter->cache_layout().entries.empty());
    policy_.add_drafter(std::string(drafter->name()), prior_chance,
                        free_.back()                  ? drafters::Proposing::free
                        : drafter->proposes_at_once() ? drafters::Proposing::at_once
                                                      : drafters::Proposing::one_by_one);
    wants_.hidden = wants_.hidden || wants.hidden;
    if (wants.tap_layers.empty()) continue;
    check(wants_.tap_layers.empty(), "two drafters that tap layers cannot run together");
    wants_.tap_layers = wants.tap_layers;
  }
}

std::vector<backend::CacheLayout> DraftPlanner::layouts() const {
  std::vector<backend::CacheLayout> layouts;
  for (const auto& drafter : drafters_) layouts.push_back(drafter->cache_layout());
  return layouts;
}

std::string DraftPlanner::names() const {
  std::string names;
  for (const auto& drafter : drafters_) names += std::string(drafter->name()) + ",";
  return names;
}

void DraftPlanner::attach(CachePool& pool) {
  for (size_t i = 0; i < drafters_.size(); ++i) drafters_[i]->attach(pool.parallel(i));
}

void DraftPlanner::open(const Sequence& sequence, int32_t cached) {
  std::vector<bool> follows;
  for (int32_t d = 0; d < count(); ++d) {
    follows.push_back(fixed_drafts_ >= 0 || policy_.may_pay(d, sequence.size() - cached,
                                                            sequence.request.max_tokens - sequence.reply_size()));
    if (follows.back()) at(d).open(sequence.lane_index, sequence.tokens, cached);
  }
  policy_.open(sequence.lane_index);
  open_lanes_.insert_or_assign(sequence.lane_index, std::move(follows));
}

void DraftPlanner::judge_unfed(const Sequence& sequence, bool ended) {
  const auto found = unfed_.find(sequence.lane_index);
  if (found == unfed_.end()) return;
  const Unfed& unfed = found->second;
  const auto known = std::min(static_cast<size_t>(sequence.size() - unfed.begin), unfed.tokens.size());
  const auto came = sequence.tokens.begin() + unfed.begin;
  const auto right =
      std::mismatch(unfed.tokens.begin(), unfed.tokens.begin() + static_cast<std::ptrdiff_t>(known), came).first -
      unfed.tokens.begin();
  const bool shown = static_cast<size_t>(right) < known || known == unfed.tokens.size();
  if (!shown && !ended) return;
  // Behind the end of the reply nothing is known.
  const auto judged = static_cast<int32_t>(shown ? unfed.tokens.size() : known);
  policy_.record_unfed(sequence.lane_index, unfed.drafter, judged, static_cast<int32_t>(right));
  unfed_.erase(found);
}

void DraftPlanner::close(const Sequence& sequence) {
  judge_unfed(sequence, true);
  for (const auto& drafter : drafters_) drafter->close(sequence.lane_index);
  policy_.close(sequence.lane_index, sequence.reply_size());
  open_lanes_.erase(sequence.lane_index);
}

void DraftPlanner::ask(int32_t drafter, std::span<Lane> lanes, bool only_granted) {
  std::vector<drafters::DraftRequest> requests;
  std::vector<Lane*> asked;
  for (Lane& lane : lanes) {
    const int32_t granted = std::max(lane.grant.drafts, lane.grant.unfed);
    const int32_t most = only_granted ? (lane.grant.drafter == drafter ? granted : 0) : lane.room;
    if (most <= 0) continue;
    const Sequence& sequence = *lane.sequence;
    if (!open_lanes_.at(sequence.lane_index)[static_cast<size_t>(drafter)]) continue;
    requests.push_back({.lane = sequence.lane_index,
                        .context = sequence.tokens,
                        .most = most,
                        .sampling = sequence.request.sampling,
                        .pages = sequence.lane.pages});
    asked.push_back(&lane);
  }
  if (requests.empty()) return;
  std::vector<drafters::Draft> drafts(requests.size());
  const int32_t waiting = waiting_rows(drafter);
  const Clock::time_point start = Clock::now();
  at(drafter).propose(requests, drafts);
  const double seconds = seconds_since(start);
  for (size_t i = 0; i < requests.size(); ++i) cut_draft(drafts[i], static_cast<size_t>(requests[i].most));
  note_proposal(drafter, drafts, waiting, seconds);
  for (size_t i = 0; i < requests.size(); ++i) {
    asked[i]->found[static_cast<size_t>(drafter)] = std::move(drafts[i]);
  }
}

int32_t DraftPlanner::waiting_rows(int32_t drafter) const {
  int32_t rows = 0;
  for (const auto& [lane, follows] : open_lanes_) {
    if (follows[static_cast<size_t>(drafter)]) rows += at(drafter).waiting_rows(lane);
  }
  return rows;
}

void DraftPlanner::note_proposal(int32_t drafter, std::span<const drafters::Draft> drafts, int32_t waiting,
                                 double seconds) {
  if (is_free(drafter)) return;
  const auto lanes = static_cast<int32_t>(drafts.size());
  if (waiting <= steady_rows * lanes && paid_.drafter < 0) {
    paid_ = {.drafter = drafter, .lanes = lanes, .drafts = 0, .seconds = seconds};
    for (const drafters::Draft& draft : drafts) paid_.drafts += static_cast<int32_t>(draft.tokens.size());
    return;
  }
  odd_round_ = true;
  if (waiting <= steady_rows * lanes) return;
  for (const drafters::Draft& draft : drafts) {
    const auto count = static_cast<int32_t>(draft.tokens.size());
    // Of a drafter without a measured cost nobody knows what the reading took.
    if (count > 0 && policy_.proposal_cost(drafter, count) <= 0.0) return;
    seconds -= policy_.proposal_cost(drafter, count);
  }
  policy_.record_waiting_rows(drafter, waiting, seconds);
}

void DraftPlanner::record_forward(int32_t rows, int32_t lanes, double seconds) {
  const Paid paid = std::exchange(paid_, {});
  if (std::exchange(odd_round_, false)) return;
  const int32_t each = paid.drafts / std::max(paid.lanes, 1);
  const double plain = policy_.forward_costs().at(lanes);
  const double told = policy_.forward_costs().at(rows) - plain +
                      (paid.drafter >= 0 ? paid.lanes * policy_.proposal_cost(paid.drafter, each) : 0.0);
  // One round in the way of other work says little.
  if (rows > lanes && told > 0.0) dearer_ = std::clamp((paid.seconds + seconds - plain) / told, 0.7, most_dearer);
  if (paid.drafter < 0) {
    policy_.record_forward(rows, seconds);
    return;
  }
  if (!policy_.forward_costs().measured_at(rows)) {
    // What such a round costs without a proposal is a guess: nothing can be learnt from the difference.
    policy_.record_forward(rows, seconds);
    if (each > 0) policy_.record_proposal(paid.drafter, each, paid.seconds / paid.lanes);
    return;
  }
  // A proposal also costs what the round after it takes longer: it drives the target's weights out of the caches.
  const double whole = paid.seconds + seconds - policy_.forward_costs().at(rows);
  if (each > 0) policy_.record_proposal(paid.drafter, each, std::max(whole, 0.5 * paid.seconds) / paid.lanes);
}

drafters::Draft DraftPlanner::propose_for_calibration(const Sequence& sequence, int32_t drafter, int32_t most) {
  const drafters::DraftRequest request{.lane = sequence.lane_index,
                                       .context = sequence.tokens,
                                       .most = most,
                                       .sampling = sequence.request.sampling,
                                       .pages = sequence.lane.pages};
  const int32_t waiting = at(drafter).waiting_rows(sequence.lane_index);
  const Clock::time_point start = Clock::now();
  drafters::Draft draft;
  at(drafter).propose(std::span(&request, 1), std::span(&draft, 1));
  if (waiting > steady_rows) policy_.calibrate_waiting_row(drafter, seconds_since(start) / waiting);
  cut_draft(draft, static_cast<size_t>(most));
  draft.parents.clear();
  return draft;
}

void DraftPlanner::calibrate_rounds(int32_t drafter, std::span<const drafters::ProposalCost> rounds) {
  std::vector<drafters::ProposalCost> costs(rounds.begin(), rounds.end());
  for (drafters::ProposalCost& cost : costs) {
    cost.seconds = std::max(0.0, cost.seconds - policy_.forward_costs().at(1 + cost.drafts));
  }
  policy_.calibrate_proposal(drafter, costs);
}

std::string DraftPlanner::describe_costs() const {
  const auto milliseconds = [](double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); };
  std::string line = "rounds of 1, 2, 4, 8, 16, 64 rows take";
  for (const int32_t rows : {1, 2, 4, 8, 16, 64}) line += " " + milliseconds(policy_.forward_costs().at(rows));
  line += " ms";
  for (size_t d = 0; d < drafters_.size(); ++d) {
    const auto drafter = static_cast<int32_t>(d);
    if (free_[d]) continue;
    line +=
        fmt::format("; {} drafts 1, 4, 8 in {} {} {} ms and reads a row in {} ms", drafters_[d]->name(),
                    milliseconds(policy_.proposal_cost(drafter, 1)), milliseconds(policy_.proposal_cost(drafter, 4)),
                    milliseconds(policy_.proposal_cost(drafter, 8)), milliseconds(policy_.waiting_row_cost(drafter)));
  }
  return line;
}

void DraftPlanner::grant_fixed(std::span<Lane> lanes, int32_t most_rows) const {
  int32_t rows_left = most_rows - static_cast<int32_t>(lanes.size());
  for (Lane& lane : lanes) {
    const int32_t drafts = std::max(0, std::min({fixed_drafts_, lane.room, rows_left}));
    lane.grant = {.drafter = drafts > 0 ? 0 : -1, .drafts = drafts, .unfed = 0};
    rows_left -= drafts;
  }
}

void DraftPlanner::grant_by_policy(std::span<Lane> lanes, int32_t most_rows) {
  std::vector<drafters::LaneOffer> offers;
  for (const Lane& lane : lanes) {
    drafters::LaneOffer offer{
        .lane = lane.sequence->lane_index, .options = {}, .tokens_left = lane.sequence->reply_left()};
    for (size_t d = 0; d < drafters_.size(); ++d) {
      // What a drafter found from tokens alone is all that it can offer.
      const int32_t most = free_[d] ? static_cast<int32_t>(lane.found[d].tokens.size())
                                    : std::min(lane.room, drafters_[d]->most_drafts());
      if (most <= 0 || !open_lanes_.at(offer.lane)[d]) continue;
      offer.options.push_back(
          {.drafter = static_cast<int32_t>(d), .most = most, .waiting_rows = drafters_[d]->waiting_rows(offer.lane)});
    }
    offers.push_back(std::move(offer));
  }
  const std::vector<drafters::Grant> grants = policy_.allot(offers, most_rows);
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i].grant = grants[i];
}

std::vector<Proposal> DraftPlanner::propose(std::span<Sequence* const> sequences, std::span<const int32_t> most_of,
                                            int32_t most_rows, CachePool& pool) {
  std::vector<Proposal> proposals(sequences.size());
  paid_ = {};
  odd_round_ = false;
  dearer_ = 1.0;
  if (sequences.empty() || drafters_.empty()) return proposals;
  std::vector<Lane> lanes;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    judge_unfed(sequence, false);
    // Pages bound what a lane can draft.
    int32_t room = std::max(0, most_of[i]);
    while (room > 0 && !pool.reserve(sequence.lane, sequence.size() + room)) room /= 2;
    lanes.push_back(
        {.sequence = &sequence, .room = room, .found = std::vector<drafters::Draft>(drafters_.size()), .grant = {}});
  }
  const auto count = static_cast<int32_t>(drafters_.size());
  if (fixed_drafts_ >= 0) {
    grant_fixed(lanes, most_rows);
    ask(0, lanes, true);
  } else {
    for (int32_t d = 0; d < count; ++d) {
      if (free_[static_cast<size_t>(d)]) ask(d, lanes, false);
    }
    grant_by_policy(lanes, most_rows);
    for (int32_t d = 0; d < count; ++d) {
      if (!free_[static_cast<size_t>(d)]) ask(d, lanes, true);
    }
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    const drafters::Grant& grant = lanes[i].grant;
    if (grant.drafter >= 0 && grant.unfed > 0) {
      drafters::Draft& draft = lanes[i].found[static_cast<size_t>(grant.drafter)];
      cut_draft(draft, static_cast<size_t>(grant.unfed));
      const Sequence& sequence = *lanes[i].sequence;
      odd_round_ = odd_round_ || !is_free(grant.drafter);
      if (draft.empty() || !draft.parents.empty() || unfed_.contains(sequence.lane_index)) continue;
      unfed_.insert_or_assign(sequence.lane_index, Unfed{grant.drafter, sequence.size(), std::move(draft.tokens)});
    }
    if (grant.drafter < 0 || grant.drafts <= 0) continue;
    proposals[i].draft = std::move(lanes[i].found[static_cast<size_t>(grant.drafter)]);
    cut_draft(proposals[i].draft, static_cast<size_t>(grant.drafts));
    if (!proposals[i].draft.empty()) proposals[i].drafter = grant.drafter;
  }
  return proposals;
}

void DraftPlanner::absorb(std::span<const drafters::KeptRows> kept, backend::Tensor hidden, backend::Tensor taps) {
  if (kept.empty()) return;
  for (const auto& drafter : drafters_) drafter->absorb(kept, hidden, taps);
}

void DraftPlanner::observe(const Sequence& sequence, int32_t drafter, const drafters::Draft& draft, int32_t accepted) {
  at(drafter).observe(sequence.lane_index, draft, accepted);
  const std::vector<int32_t> depths = window_depths(draft.parents, draft.tokens.size());
  const int32_t deepest = depths.empty() ? 0 : *std::max_element(depths.begin(), depths.end()) + 1;
  policy_.record_outcome(sequence.lane_index, drafter, deepest, accepted, dearer_);
}

}  // namespace tensorfold::engine
