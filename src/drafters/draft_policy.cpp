#include "drafters/draft_policy.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tensorfold::drafters {
namespace {

constexpr double kCostWeight = 0.2;
// A lane learns fast at first and settles at this weight.
constexpr double kLaneWeight = 0.05;
constexpr double kSharedWeight = 0.03;
// What one row is taken to cost before anything was measured; only ratios matter then.
constexpr double kUnmeasured = 1e-3;
// A time so many times the mean is the machine's hiccup, not the cost of a row.
constexpr double kHiccup = 4.0;
// Another drafter must promise so much more before a lane changes to it.
constexpr double kSwitch = 1.03;
// Rounds a lane gives each of several drafters before it compares them.
constexpr int32_t kTrialRounds = 2;

}  // namespace

void CostTable::record(int32_t count, double seconds) {
  const auto [place, added] = means_.try_emplace(count, seconds);
  if (added) return;
  const double bounded = std::min(seconds, place->second * kHiccup);
  place->second += kCostWeight * (bounded - place->second);
}

double CostTable::at(int32_t count) const {
  if (means_.empty()) return kUnmeasured * (1.0 + slope_ * (count - 1));
  const auto above = means_.lower_bound(count);
  double floor = 0.0;
  for (auto below = means_.begin(); below != above; ++below) floor = std::max(floor, below->second);
  if (above != means_.end() && above->first == count) return std::max(floor, above->second);
  if (above == means_.begin())
    return above->second * (1.0 + slope_ * (count - 1)) / (1.0 + slope_ * (above->first - 1));
  const auto below = std::prev(above);
  if (above == means_.end()) {
    // Beyond the widest measured count: its last slope where there are two, else the guess.
    if (below == means_.begin())
      return below->second * (1.0 + slope_ * (count - 1)) / (1.0 + slope_ * (below->first - 1));
    const auto before = std::prev(below);
    const double slope = std::max(0.0, (below->second - before->second) / (below->first - before->first));
    return std::max(floor, below->second + slope * (count - below->first));
  }
  const double share = static_cast<double>(count - below->first) / (above->first - below->first);
  return std::max(floor, below->second + share * (above->second - below->second));
}

void AcceptanceByDepth::record(int32_t drafted, int32_t accepted, double weight) {
  const auto tried = std::min({drafted, accepted + 1, static_cast<int32_t>(kDepths)});
  for (int32_t j = 0; j < tried; ++j) {
    double& chance = chances_[static_cast<size_t>(j)];
    chance += weight * ((accepted > j ? 1.0 : 0.0) - chance);
  }
}

double AcceptanceByDepth::at(int32_t depth) const {
  return chances_[std::min(static_cast<size_t>(depth), kDepths - 1)];
}

int32_t DraftPolicy::add_drafter(std::string name, double prior, bool free) {
  check(lanes_.empty(), "drafters are added before lanes open");
  drafters_.push_back({std::move(name), free, AcceptanceByDepth(prior), CostTable(0.5)});
  return static_cast<int32_t>(drafters_.size()) - 1;
}

void DraftPolicy::open(int32_t lane) {
  LaneRecord record;
  for (const DrafterRecord& drafter : drafters_) record.acceptance.push_back(drafter.acceptance);
  record.rounds.assign(drafters_.size(), 0);
  record.wait = options_.first_wait;
  lanes_.insert_or_assign(lane, std::move(record));
}

void DraftPolicy::close(int32_t lane) { lanes_.erase(lane); }

void DraftPolicy::record_forward(int32_t rows, double seconds) { forward_.record(rows, seconds); }

void DraftPolicy::record_proposal(int32_t drafter, int32_t drafts, double seconds) {
  drafters_[static_cast<size_t>(drafter)].cost.record(drafts, seconds);
}

void DraftPolicy::record_outcome(int32_t lane, int32_t drafter, int32_t drafted, int32_t accepted) {
  const auto index = static_cast<size_t>(drafter);
  drafters_[index].acceptance.record(drafted, accepted, kSharedWeight);
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return;
  const double learning = 1.0 / (found->second.rounds[index] + 4);
  found->second.acceptance[index].record(drafted, accepted, std::max(kLaneWeight, learning));
  found->second.rounds[index] += 1;
}

double DraftPolicy::expected_tokens(int32_t lane, int32_t drafter, int32_t drafts) const {
  const AcceptanceByDepth& acceptance = lanes_.at(lane).acceptance[static_cast<size_t>(drafter)];
  double landed = 1.0;
  double tokens = 1.0;
  for (int32_t j = 0; j < drafts; ++j) {
    landed *= acceptance.at(j);
    tokens += landed;
  }
  return tokens;
}

double DraftPolicy::proposal_cost(int32_t drafter, int32_t drafts) const {
  const DrafterRecord& record = drafters_[static_cast<size_t>(drafter)];
  if (record.free || drafts == 0 || !record.cost.measured()) return 0.0;
  return record.cost.at(drafts);
}

DraftPolicy::Choice DraftPolicy::choose_alone(const LaneRecord& lane, const LaneOffer& offer, int32_t others) const {
  Choice choice;
  const double plain = 1.0 / std::max(forward_.at(others + 1), 1e-9);
  choice.rate = plain;
  for (const DraftOption& option : offer.options) {
    const auto index = static_cast<size_t>(option.drafter);
    double landed = 1.0;
    double tokens = 1.0;
    double best_rate = 0.0;
    int32_t best = 0;
    for (int32_t n = 1; n <= option.most; ++n) {
      landed *= lane.acceptance[index].at(n - 1);
      tokens += landed;
      const double rate = tokens / std::max(forward_.at(others + 1 + n) + proposal_cost(option.drafter, n), 1e-9);
      if (rate > best_rate) {
        best_rate = rate;
        best = n;
      }
    }
    const bool on_trial = offer.options.size() > 1 && option.most > 0 && lane.rounds[index] < kTrialRounds;
    const double wanted = lane.preferred >= 0 && lane.preferred != option.drafter ? choice.rate * kSwitch : choice.rate;
    const bool first = choice.option.most == 0;
    if (on_trial || (first && option.most > 0) || best_rate > wanted) {
      choice = {option, best_rate > plain * options_.margin || on_trial ? std::max(best, 1) : 0,
                std::max(best_rate, plain)};
      if (on_trial) break;
    }
  }
  return choice;
}

void DraftPolicy::fill(std::span<const Choice> choices, std::span<const LaneOffer> offers, int32_t most_rows,
                       std::span<Grant> grants) const {
  const auto lanes = static_cast<int32_t>(offers.size());
  std::vector<int32_t> counts(offers.size(), 0);
  std::vector<double> next(offers.size());
  const auto chance_of = [&](size_t i) {
    return lanes_.at(offers[i].lane).acceptance[static_cast<size_t>(choices[i].option.drafter)].at(counts[i]);
  };
  for (size_t i = 0; i < offers.size(); ++i) next[i] = choices[i].best > 0 ? chance_of(i) : 0.0;
  double tokens = lanes;
  double proposals = 0.0;
  const double plain_rate = tokens / std::max(forward_.at(lanes), 1e-9);
  double best_rate = plain_rate * options_.margin;
  for (int32_t rows = lanes + 1; rows <= most_rows; ++rows) {
    const auto i = static_cast<size_t>(std::max_element(next.begin(), next.end()) - next.begin());
    if (!(next[i] > 0.0)) return;
    proposals +=
        proposal_cost(choices[i].option.drafter, counts[i] + 1) - proposal_cost(choices[i].option.drafter, counts[i]);
    tokens += next[i];
    counts[i] += 1;
    const bool full = counts[i] >= choices[i].option.most;
    next[i] = full ? 0.0 : next[i] * chance_of(i);
    const double rate = tokens / std::max(forward_.at(rows) + proposals, 1e-9);
    if (rate > best_rate) {
      best_rate = rate;
      for (size_t j = 0; j < offers.size(); ++j) grants[j] = {choices[j].option.drafter, counts[j]};
    }
  }
}

void DraftPolicy::probe(LaneRecord& lane, const Choice& choice, int32_t room, Grant& grant) const {
  if (choice.option.most <= 0) return;
  if (grant.drafts > 0) {
    lane.plain_rounds = 0;
    lane.wait = options_.first_wait;
    lane.preferred = grant.drafter;
    lane.drafted_rounds += 1;
    const bool deeper = lane.drafted_rounds % options_.deeper_every == 0;
    if (deeper && room > 0 && grant.drafts < choice.option.most) grant.drafts += 1;
    return;
  }
  lane.plain_rounds += 1;
  if (lane.plain_rounds < lane.wait || room <= 0) return;
  lane.plain_rounds = 0;
  lane.wait = std::min(lane.wait * 2, options_.longest_wait);
  grant = {choice.option.drafter, 1};
}

std::vector<Grant> DraftPolicy::allot(std::span<const LaneOffer> offers, int32_t most_rows) {
  std::vector<Grant> grants(offers.size());
  if (offers.empty()) return grants;
  // Without the cost of a plain round there is nothing to compare with.
  if (!forward_.measured_at(static_cast<int32_t>(offers.size()))) return grants;
  std::vector<Choice> choices;
  const auto others = static_cast<int32_t>(offers.size()) - 1;
  for (const LaneOffer& offer : offers) {
    const auto found = lanes_.find(offer.lane);
    check(found != lanes_.end(), "a lane asked for drafts before it was opened");
    choices.push_back(choose_alone(found->second, offer, others));
  }
  fill(choices, offers, most_rows, grants);
  int32_t room = most_rows - static_cast<int32_t>(offers.size());
  for (const Grant& grant : grants) room -= grant.drafts;
  for (size_t i = 0; i < offers.size(); ++i) {
    const int32_t before = grants[i].drafts;
    probe(lanes_.at(offers[i].lane), choices[i], room, grants[i]);
    room -= grants[i].drafts - before;
  }
  return grants;
}

}  // namespace tensorfold::drafters
