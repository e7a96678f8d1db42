#include "engine/draft_planner.h"

#include <algorithm>

#include "base/error.h"
#include "engine/forward.h"

namespace tensorfold::engine {
namespace {

// Believed chance of a draft before anything was measured.
constexpr double prior_chance = 0.7;

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
    policy_.add_drafter(std::string(drafter->name()), prior_chance, free_.back());
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
  for (const auto& drafter : drafters_) drafter->open(sequence.lane_index, sequence.tokens, cached);
  policy_.open(sequence.lane_index);
  rounds_since_.erase(sequence.lane_index);
}

void DraftPlanner::close(const Sequence& sequence) {
  for (const auto& drafter : drafters_) drafter->close(sequence.lane_index);
  policy_.close(sequence.lane_index);
}

void DraftPlanner::ask(int32_t drafter, std::span<Lane> lanes, bool only_granted) {
  std::vector<drafters::DraftRequest> requests;
  std::vector<Lane*> asked;
  for (Lane& lane : lanes) {
    const int32_t most = only_granted ? (lane.grant.drafter == drafter ? lane.grant.drafts : 0) : lane.room;
    if (most <= 0) continue;
    const Sequence& sequence = *lane.sequence;
    requests.push_back({.lane = sequence.lane_index,
                        .context = sequence.tokens,
                        .most = most,
                        .sampling = sequence.request.sampling,
                        .pages = sequence.lane.pages});
    asked.push_back(&lane);
  }
  if (requests.empty()) return;
  std::vector<drafters::Draft> drafts(requests.size());
  const bool steady = is_steady(drafter, requests);
  const Clock::time_point start = Clock::now();
  at(drafter).propose(requests, drafts);
  const double each = seconds_since(start) / static_cast<double>(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    cut_draft(drafts[i], static_cast<size_t>(requests[i].most));
    rounds_since_[requests[i].lane][drafter] = 0;
    if (steady && !drafts[i].empty()) {
      policy_.record_proposal(drafter, static_cast<int32_t>(drafts[i].tokens.size()), each);
    }
    asked[i]->found[static_cast<size_t>(drafter)] = std::move(drafts[i]);
  }
}

bool DraftPlanner::is_steady(int32_t drafter, std::span<const drafters::DraftRequest> requests) const {
  return std::all_of(requests.begin(), requests.end(), [&](const drafters::DraftRequest& request) {
    const auto lane = rounds_since_.find(request.lane);
    if (lane == rounds_since_.end()) return false;
    const auto since = lane->second.find(drafter);
    return since != lane->second.end() && since->second <= 1;
  });
}

void DraftPlanner::grant_fixed(std::span<Lane> lanes, int32_t most_rows) const {
  int32_t rows_left = most_rows - static_cast<int32_t>(lanes.size());
  for (Lane& lane : lanes) {
    const int32_t drafts = std::max(0, std::min({fixed_drafts_, lane.room, rows_left}));
    lane.grant = {.drafter = drafts > 0 ? 0 : -1, .drafts = drafts};
    rows_left -= drafts;
  }
}

void DraftPlanner::grant_by_policy(std::span<Lane> lanes, int32_t most_rows) {
  std::vector<drafters::LaneOffer> offers;
  for (const Lane& lane : lanes) {
    drafters::LaneOffer offer{.lane = lane.sequence->lane_index, .options = {}};
    for (size_t d = 0; d < drafters_.size(); ++d) {
      // What a drafter found from tokens alone is all that it can offer.
      const int32_t most = free_[d] ? static_cast<int32_t>(lane.found[d].tokens.size()) : lane.room;
      if (most > 0) offer.options.push_back({.drafter = static_cast<int32_t>(d), .most = most});
    }
    offers.push_back(std::move(offer));
  }
  const std::vector<drafters::Grant> grants = policy_.allot(offers, most_rows);
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i].grant = grants[i];
}

std::vector<Proposal> DraftPlanner::propose(std::span<Sequence* const> sequences, std::span<const int32_t> most_of,
                                            int32_t most_rows, CachePool& pool) {
  std::vector<Proposal> proposals(sequences.size());
  if (sequences.empty() || drafters_.empty()) return proposals;
  std::vector<Lane> lanes;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i];
    // Pages bound what a lane can draft.
    int32_t room = std::max(0, most_of[i]);
    if (room > 0 && !pool.reserve(sequence.lane, sequence.size() + room)) room = 0;
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
    if (grant.drafter < 0 || grant.drafts <= 0) continue;
    proposals[i].draft = std::move(lanes[i].found[static_cast<size_t>(grant.drafter)]);
    cut_draft(proposals[i].draft, static_cast<size_t>(grant.drafts));
    if (!proposals[i].draft.empty()) proposals[i].drafter = grant.drafter;
  }
  return proposals;
}

void DraftPlanner::absorb(std::span<const drafters::KeptRows> kept, backend::Tensor hidden, backend::Tensor taps) {
  if (kept.empty()) return;
  for (const drafters::KeptRows& rows : kept) {
    for (auto& [drafter, since] : rounds_since_[rows.lane]) ++since;
  }
  for (const auto& drafter : drafters_) drafter->absorb(kept, hidden, taps);
}

void DraftPlanner::observe(const Sequence& sequence, int32_t drafter, const drafters::Draft& draft, int32_t accepted) {
  at(drafter).observe(sequence.lane_index, draft, accepted);
  const std::vector<int32_t> depths = window_depths(draft.parents, draft.tokens.size());
  const int32_t deepest = depths.empty() ? 0 : *std::max_element(depths.begin(), depths.end()) + 1;
  policy_.record_outcome(sequence.lane_index, drafter, deepest, accepted);
}

}  // namespace tensorfold::engine
