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

void DraftPlanner::attach(CachePool& pool) {
  for (size_t i = 0; i < drafters_.size(); ++i) drafters_[i]->attach(pool.parallel(i));
}

void DraftPlanner::open(const Sequence& sequence, int32_t cached) {
  for (const auto& drafter : drafters_) drafter->open(sequence.lane_index, sequence.tokens, cached);
  policy_.open(sequence.lane_index);
}

void DraftPlanner::close(const Sequence& sequence) {
  for (const auto& drafter : drafters_) drafter->close(sequence.lane_index);
  policy_.close(sequence.lane_index);
}

void DraftPlanner::ask(int32_t drafter, std::span<const drafters::DraftRequest> requests,
                       std::span<drafters::Draft> drafts) {
  if (requests.empty()) return;
  const Clock::time_point start = Clock::now();
  at(drafter).propose(requests, drafts);
  const double each = seconds_since(start) / static_cast<double>(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    cut_draft(drafts[i], static_cast<size_t>(std::max(requests[i].most, 0)));
    if (!drafts[i].empty()) policy_.record_proposal(drafter, static_cast<int32_t>(drafts[i].tokens.size()), each);
  }
}

std::vector<Proposal> DraftPlanner::propose(std::span<Sequence* const> lanes, std::span<const int32_t> most_of,
                                            int32_t most_rows, CachePool& pool) {
  std::vector<Proposal> proposals(lanes.size());
  if (lanes.empty() || drafters_.empty()) return proposals;
  const auto request_for = [&](size_t i, int32_t most) {
    const Sequence& sequence = *lanes[i];
    return drafters::DraftRequest{.lane = sequence.lane_index,
                                  .context = sequence.tokens,
                                  .most = most,
                                  .sampling = sequence.request.sampling,
                                  .pages = sequence.lane.pages};
  };
  // Pages first: they bound what a lane can draft.
  std::vector<int32_t> room(lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    room[i] = std::max(0, most_of[i]);
    if (room[i] > 0 && !pool.reserve(lanes[i]->lane, lanes[i]->size() + room[i])) room[i] = 0;
  }
  // Drafters that read tokens alone propose at once; what they found is an offer like the others'.
  const auto count = static_cast<int32_t>(drafters_.size());
  std::vector<std::vector<drafters::Draft>> found(drafters_.size(), std::vector<drafters::Draft>(lanes.size()));
  const auto ask_for = [&](int32_t drafter, std::span<const size_t> indices, std::span<const int32_t> most) {
    std::vector<drafters::DraftRequest> requests;
    std::vector<drafters::Draft> drafts(indices.size());
    for (size_t k = 0; k < indices.size(); ++k) requests.push_back(request_for(indices[k], most[k]));
    ask(drafter, requests, drafts);
    for (size_t k = 0; k < indices.size(); ++k) {
      found[static_cast<size_t>(drafter)][indices[k]] = std::move(drafts[k]);
    }
  };
  std::vector<size_t> able;
  std::vector<int32_t> able_room;
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (room[i] == 0) continue;
    able.push_back(i);
    able_room.push_back(room[i]);
  }
  std::vector<drafters::Grant> grants(lanes.size());
  if (fixed_drafts_ >= 0) {
    int32_t rows_left = most_rows - static_cast<int32_t>(lanes.size());
    for (const size_t i : able) {
      const int32_t drafts = std::min({fixed_drafts_, room[i], rows_left});
      grants[i] = {.drafter = drafts > 0 ? 0 : -1, .drafts = std::max(drafts, 0)};
      rows_left -= grants[i].drafts;
    }
  } else {
    for (int32_t d = 0; d < count; ++d) {
      if (free_[static_cast<size_t>(d)]) ask_for(d, able, able_room);
    }
    std::vector<drafters::LaneOffer> offers;
    for (size_t i = 0; i < lanes.size(); ++i) {
      drafters::LaneOffer offer{.lane = lanes[i]->lane_index, .options = {}};
      for (int32_t d = 0; d < count && room[i] > 0; ++d) {
        const auto drafted = static_cast<int32_t>(found[static_cast<size_t>(d)][i].tokens.size());
        const int32_t most = free_[static_cast<size_t>(d)] ? drafted : room[i];
        if (most > 0) offer.options.push_back({.drafter = d, .most = most});
      }
      offers.push_back(std::move(offer));
    }
    grants = policy_.allot(offers, most_rows);
  }
  for (int32_t d = 0; d < count; ++d) {
    if (free_[static_cast<size_t>(d)] && fixed_drafts_ < 0) continue;
    std::vector<size_t> indices;
    std::vector<int32_t> most;
    for (size_t i = 0; i < lanes.size(); ++i) {
      if (grants[i].drafter != d || grants[i].drafts <= 0) continue;
      indices.push_back(i);
      most.push_back(grants[i].drafts);
    }
    ask_for(d, indices, most);
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (grants[i].drafter < 0 || grants[i].drafts <= 0) continue;
    proposals[i].drafter = grants[i].drafter;
    proposals[i].draft = std::move(found[static_cast<size_t>(grants[i].drafter)][i]);
    cut_draft(proposals[i].draft, static_cast<size_t>(grants[i].drafts));
    if (proposals[i].draft.empty()) proposals[i].drafter = -1;
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
  policy_.record_outcome(sequence.lane_index, drafter, deepest, accepted);
}

}  // namespace tensorfold::engine
