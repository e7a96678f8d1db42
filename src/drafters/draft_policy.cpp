#include "drafters/draft_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace tensorfold::drafters {
namespace {

// Outcomes that a belief holds, and what a first guess and what other replies showed count for.
constexpr double kSharedMemory = 48.0;
constexpr double kLaneMemory = 24.0;
constexpr double kPriorOutcomes = 2.0;
constexpr double kLaneBegins = 8.0;
// Standard errors that a chance may lie above its mean.
constexpr double kHope = 0.5;
// Another drafter must promise so much more before a lane changes to it.
constexpr double kSwitch = 1.03;
// Rounds a lane gives each of several drafters before it compares them.
constexpr int32_t kTrialRounds = 2;
constexpr double kReplyWeight = 0.1;
constexpr double kWaitingWeight = 0.3;
// Of a plain round's time, what drafts save a token at their best, as far as is known before any was made.
constexpr double kMostSaved = 0.5;
// One pooled draft of a window says less than the window.
constexpr double kPooledShare = 0.5;
// Outcomes after which half of a drafter's promise is trusted.
constexpr double kHalfTrusted = 6.0;
constexpr double kAlike = 0.93;

/// Costs of proposals before any was measured.
CostTable unmeasured(Proposing proposing) { return CostTable(proposing == Proposing::at_once ? 0.0 : 0.5); }

}  // namespace

AcceptanceByDepth::AcceptanceByDepth(double prior, bool pooled) : memory_(kSharedMemory), pooled_(pooled) {
  chances_[0] = {prior, kPriorOutcomes};
}

AcceptanceByDepth AcceptanceByDepth::of_lane(const AcceptanceByDepth& shared) {
  AcceptanceByDepth lane = shared;
  lane.memory_ = kLaneMemory;
  for (Chance& chance : lane.chances_) chance.outcomes = std::min(chance.outcomes, kLaneBegins);
  return lane;
}

void AcceptanceByDepth::learn(Chance& chance, bool landed, double weight) const {
  chance.outcomes = std::min(chance.outcomes + weight, memory_);
  chance.mean += weight / chance.outcomes * ((landed ? 1.0 : 0.0) - chance.mean);
}

AcceptanceByDepth::Chance AcceptanceByDepth::chance(size_t depth) const {
  if (depth < known_) return chances_[depth];
  Chance deepest = chances_[known_ - 1];
  // Of a depth that was never tried itself no more than a little is known.
  if (!pooled_) deepest.outcomes = std::min(deepest.outcomes, kPriorOutcomes);
  return deepest;
}

void AcceptanceByDepth::record(int32_t drafted, int32_t accepted) {
  const auto tried = static_cast<size_t>(std::min({drafted, accepted + 1, static_cast<int32_t>(kDepths)}));
  const size_t known = std::max(known_, pooled_ ? std::min(tried, size_t{2}) : tried);
  const Chance untried = chance(known_);
  for (; known_ < known; ++known_) chances_[known_] = untried;
  for (size_t j = 0; j < tried; ++j) {
    const bool behind = pooled_ && j > 0;
    learn(chances_[behind ? 1 : j], accepted > static_cast<int32_t>(j), behind ? kPooledShare : 1.0);
  }
}

double AcceptanceByDepth::at(int32_t depth) const {
  return chances_[std::min(static_cast<size_t>(depth), known_ - 1)].mean;
}

double AcceptanceByDepth::at_best(int32_t depth) const {
  const Chance known = chance(static_cast<size_t>(depth));
  return std::min(1.0, known.mean + kHope * std::sqrt(known.mean * (1.0 - known.mean) / known.outcomes));
}

int32_t DraftPolicy::add_drafter(std::string name, double prior, Proposing proposing) {
  check(lanes_.empty(), "drafters are added before lanes open");
  drafters_.push_back({.name = std::move(name),
                       .proposing = proposing,
                       .acceptance = AcceptanceByDepth(prior, proposing == Proposing::free),
                       .cost = unmeasured(proposing),
                       .outcomes = 0,
                       .wait = options_.first_wait,
                       .seconds_a_waiting_row = 0.0});
  return static_cast<int32_t>(drafters_.size()) - 1;
}

void DraftPolicy::open(int32_t lane) {
  LaneRecord record;
  record.wait = options_.longest_wait;
  for (const DrafterRecord& drafter : drafters_) {
    record.acceptance.push_back(AcceptanceByDepth::of_lane(drafter.acceptance));
    record.wait = std::min(record.wait, drafter.wait);
  }
  record.rounds.assign(drafters_.size(), 0);
  for (const DrafterRecord& drafter : drafters_) {
    if (drafter.proposing != Proposing::free) record.plain_rounds = std::max(record.plain_rounds, drafter.plain_rounds);
  }
  record.deeper_wait = options_.deeper_every;
  lanes_.insert_or_assign(lane, std::move(record));
}

void DraftPolicy::close(int32_t lane, int32_t tokens) {
  const auto found = lanes_.find(lane);
  if (found != lanes_.end()) {
    for (DrafterRecord& drafter : drafters_) drafter.plain_rounds = found->second.plain_rounds;
    lanes_.erase(found);
  }
  if (tokens > 0) typical_reply_ += std::max(kReplyWeight, 1.0 / (++replies_ + 1)) * (tokens - typical_reply_);
}

void DraftPolicy::record_forward(int32_t rows, double seconds) {
  const double step = forward_.record(rows, seconds);
  for (DrafterRecord& drafter : drafters_) drafter.cost.scale(step);
}

bool DraftPolicy::may_pay(int32_t drafter, int32_t rows, int32_t tokens) const {
  const DrafterRecord& record = drafters_[static_cast<size_t>(drafter)];
  if (is_free(drafter) || tokens < 2) return is_free(drafter);
  const double saved = kMostSaved * forward_.at(1) * std::min(static_cast<double>(tokens), typical_reply_);
  return record.seconds_a_waiting_row * rows <= saved;
}

void DraftPolicy::record_proposal(int32_t drafter, int32_t drafts, double seconds) {
  DrafterRecord& record = drafters_[static_cast<size_t>(drafter)];
  // Measurements of any number of drafts say what a block takes.
  record.cost.record(record.proposing == Proposing::at_once ? 1 : drafts, seconds);
}

void DraftPolicy::calibrate_proposal(int32_t drafter, std::span<const ProposalCost> costs) {
  DrafterRecord& record = drafters_[static_cast<size_t>(drafter)];
  if (costs.empty()) return;
  // What rounds showed before their costs were known is not to stand beside measurements.
  record.cost = unmeasured(record.proposing);
  if (record.proposing == Proposing::at_once) {
    std::vector<double> seconds;
    for (const ProposalCost& cost : costs) seconds.push_back(cost.seconds);
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    record.cost.set(1, *middle);
    return;
  }
  for (const ProposalCost& cost : costs) record.cost.set(cost.drafts, cost.seconds);
}

void DraftPolicy::record_waiting_rows(int32_t drafter, int32_t rows, double seconds) {
  double& each = drafters_[static_cast<size_t>(drafter)].seconds_a_waiting_row;
  const double now = std::max(0.0, seconds) / std::max(rows, 1);
  each = each > 0.0 ? each + kWaitingWeight * (now - each) : now;
}

DraftPolicy::LaneRecord* DraftPolicy::learn(int32_t lane, int32_t drafter, int32_t drafted, int32_t accepted) {
  const auto index = static_cast<size_t>(drafter);
  DrafterRecord& shared = drafters_[index];
  shared.acceptance.record(drafted, accepted);
  shared.outcomes = std::min(shared.outcomes + 1, 1 << 20);
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return nullptr;
  LaneRecord& record = found->second;
  record.acceptance[index].record(drafted, accepted);
  record.rounds[index] += 1;
  return &record;
}

void DraftPolicy::record_outcome(int32_t lane, int32_t drafter, int32_t drafted, int32_t accepted, double dearer) {
  LaneRecord* record = learn(lane, drafter, drafted, accepted);
  if (record == nullptr) return;
  // What these drafts cost more than a plain row, against what their tokens would have cost in plain rounds.
  const double plain = forward_.at(record->lanes);
  const double gained = accepted * plain / record->lanes - dearer * extra_seconds(record->lanes, drafter, drafted);
  record->gained += gained;
  record->won_drafter = drafter;
  record->won_drafts = gained > 0.0 ? drafted : 0;
  record->elapsed += accepted * plain / record->lanes;
}

void DraftPolicy::record_unfed(int32_t lane, int32_t drafter, int32_t drafted, int32_t right) {
  if (drafted > 0) learn(lane, drafter, drafted, right);
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
  if (is_free(drafter) || drafts == 0 || !record.cost.measured()) return 0.0;
  return record.cost.at(drafts);
}

double DraftPolicy::reading_seconds(const DraftOption& option) const {
  const DrafterRecord& drafter = drafters_[static_cast<size_t>(option.drafter)];
  return is_free(option.drafter) ? 0.0 : drafter.seconds_a_waiting_row * option.waiting_rows;
}

bool DraftPolicy::pays_reading(const DraftOption& option, int32_t tokens_left, double rate, double plain) const {
  if (option.waiting_rows < options_.least_waiting_rows) return true;
  const double saved = std::max(0.0, 1.0 / plain - 1.0 / rate);
  return reading_seconds(option) <= saved * std::min(static_cast<double>(tokens_left), typical_reply_);
}

double DraftPolicy::credit(const LaneRecord& lane) const {
  const double round = forward_.at(lane.lanes) / lane.lanes;
  return lane.gained + options_.allowed_rounds * round + options_.allowed_share * lane.elapsed;
}

bool DraftPolicy::may_stake(const LaneRecord& lane, int32_t drafter, double extra, double tokens, int32_t tokens_left,
                            int32_t others, double more) const {
  const double plain = forward_.at(others + 1) / (others + 1);
  const double known = drafters_[static_cast<size_t>(drafter)].outcomes;
  const double trust = options_.trust * known / (known + kHalfTrusted);
  const double expected = std::min(tokens, static_cast<double>(tokens_left)) - 1.0;
  const double stake = extra - trust * expected * plain;
  const double left = std::min(static_cast<double>(tokens_left), typical_reply_);
  // A lane that gained may stake that; its allowance is bounded by what is left of the reply.
  const double allowed = credit(lane) - std::max(lane.gained, 0.0);
  return stake <= std::max(lane.gained, 0.0) + std::min(allowed, options_.allowed_of_left * left * plain) + more;
}

double DraftPolicy::extra_seconds(int32_t lanes, int32_t drafter, int32_t drafts) const {
  return forward_.at(lanes + drafts) - forward_.at(lanes) + proposal_cost(drafter, drafts);
}

DraftPolicy::Choice DraftPolicy::judge(const LaneRecord& lane, const DraftOption& option, int32_t tokens_left,
                                       int32_t others) const {
  const AcceptanceByDepth& acceptance = lane.acceptance[static_cast<size_t>(option.drafter)];
  const double plain_round = forward_.at(others + 1);
  Choice choice{.option = option, .offered = option.most};
  choice.option.most = 0;
  double landed = 1.0;
  double tokens = 1.0;
  double may_land = 1.0;
  double may_get = 1.0;
  double highest = 0.0;
  for (int32_t n = 1; n <= choice.offered; ++n) {
    landed *= acceptance.at(n - 1);
    tokens += landed;
    const double round = forward_.at(others + 1 + n);
    const double proposal = proposal_cost(option.drafter, n);
    const double cost = std::max(round + proposal, 1e-9);
    const double rate = tokens / cost;
    // Only what is paid for is tried on a hope; copies are looked at in any case.
    if (!is_free(option.drafter)) {
      may_land *= acceptance.at_best(n - 1);
      may_get += may_land;
      if (may_get / cost > choice.hope) {
        choice.hope = may_get / cost;
        choice.hoped = n;
        choice.hoped_expected = tokens;
      }
    }
    highest = std::max(highest, rate);
    // Of depths that promise about the same the deepest: its windows tell about all.
    if (rate >= kAlike * highest) {
      choice.likely = n;
      choice.expected = tokens;
    }
    if (!may_stake(lane, option.drafter, round - plain_round + proposal, tokens, tokens_left, others)) continue;
    choice.option.most = n;
    if (rate > choice.rate) {
      choice.rate = rate;
      choice.best = n;
    }
  }
  return choice;
}

DraftPolicy::Choice DraftPolicy::choose_alone(const LaneRecord& lane, const LaneOffer& offer, int32_t others) const {
  Choice chosen;
  const double plain = 1.0 / std::max(forward_.at(others + 1), 1e-9);
  chosen.rate = plain;
  for (const DraftOption& option : offer.options) {
    Choice choice = judge(lane, option, offer.tokens_left, others);
    const bool worth =
        choice.rate > plain * options_.margin && pays_reading(choice.option, offer.tokens_left, choice.rate, plain);
    const bool on_trial =
        worth && offer.options.size() > 1 && lane.rounds[static_cast<size_t>(option.drafter)] < kTrialRounds;
    const double wanted = lane.preferred >= 0 && lane.preferred != option.drafter ? chosen.rate * kSwitch : chosen.rate;
    const bool first = chosen.offered == 0 && choice.offered > 0;
    if (!on_trial && !first && (!worth || choice.rate <= wanted)) continue;
    if (!worth) {
      choice.best = 0;
      choice.rate = plain;
    }
    chosen = choice;
    if (on_trial) break;
  }
  return chosen;
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
      for (size_t j = 0; j < offers.size(); ++j) grants[j] = {choices[j].option.drafter, counts[j], 0};
    }
  }
}

void DraftPolicy::try_deeper(LaneRecord& lane, const Choice& choice, int32_t room, Grant& grant) const {
  if (lane.deeper_from >= 0) {
    // The last try was worth it when more is granted now than then.
    const bool worth = grant.drafts > lane.deeper_from;
    lane.deeper_wait = worth ? options_.deeper_every : std::min(2 * lane.deeper_wait, options_.longest_wait);
    lane.deeper_from = -1;
  }
  if (++lane.drafted_rounds < lane.deeper_wait || room <= 0 || grant.drafts >= choice.option.most) return;
  lane.drafted_rounds = 0;
  lane.deeper_from = grant.drafts;
  grant.drafts += 1;
}

void DraftPolicy::probe(LaneRecord& lane, const Choice& choice, const LaneOffer& offer, int32_t room, Grant& grant) {
  if (choice.offered <= 0) return;
  if (grant.drafts > 0) {
    DrafterRecord& drafter = drafters_[static_cast<size_t>(choice.option.drafter)];
    lane.plain_rounds = 0;
    lane.preferred = grant.drafter;
    if (lane.gained > 0.0) drafter.wait = lane.wait = options_.first_wait;
    try_deeper(lane, choice, room, grant);
    return;
  }
  // What has just won goes on until it loses, whatever is believed of it.
  const int32_t again = std::min({lane.won_drafts, choice.offered, room});
  if (again > 0 && lane.won_drafter == choice.option.drafter && credit(lane) > 0.0) {
    grant = {choice.option.drafter, again, 0};
    return;
  }
  lane.plain_rounds += 1;
  // Drafts that were found already cost nothing to look at.
  for (const DraftOption& option : offer.options) {
    if (is_free(option.drafter)) grant = {option.drafter, 0, option.most};
  }
  if (!is_free(choice.option.drafter)) try_paid(lane, choice, offer, room, grant);
}

void DraftPolicy::try_paid(LaneRecord& lane, const Choice& choice, const LaneOffer& offer, int32_t room, Grant& grant) {
  DrafterRecord& drafter = drafters_[static_cast<size_t>(choice.option.drafter)];
  const bool unknown = drafter.outcomes < options_.first_outcomes;
  const int32_t others = lane.lanes - 1;
  const double plain = forward_.at(lane.lanes) / lane.lanes;
  // What may well be worth it is tried as soon as the loss that is to be expected can be afforded.
  const bool hopeful = !unknown && choice.hoped > 0 && choice.hope > 1.0 / std::max(forward_.at(lane.lanes), 1e-9);
  // A known one that gives no hope is asked again now and then: texts change.
  const int32_t wait = unknown ? options_.first_wait / 2 : std::max(lane.wait, options_.longest_wait / 2);
  if (!hopeful && lane.plain_rounds < wait) return;
  const int32_t drafts = hopeful ? choice.hoped : choice.likely;
  const double expected = hopeful ? choice.hoped_expected : choice.expected;
  const double reading = reading_seconds(choice.option);
  const double rows = forward_.at(lane.lanes + drafts) - forward_.at(lane.lanes);
  const double extra = extra_seconds(lane.lanes, choice.option.drafter, drafts);
  const double worth = (expected - 1.0) * plain;
  const bool fed = !unknown && drafts > 0 && drafts <= room && worth > rows &&
                   may_stake(lane, choice.option.drafter, extra, expected, offer.tokens_left, others,
                             std::max(probe_credit_ * forward_.at(1) - reading, 0.0));
  const int32_t unfed = unfed_drafts(choice);
  const double cost = reading + (fed ? std::max(extra - worth, 0.0) : proposal_cost(choice.option.drafter, unfed));
  if (!unknown) {
    const double rounds = cost / std::max(forward_.at(1), 1e-9);
    const double most = options_.tries_of_left * std::min(static_cast<double>(offer.tokens_left), typical_reply_) +
                        options_.probe_share * lane.elapsed / std::max(forward_.at(1), 1e-9);
    if (rounds > probe_credit_ || lane.tried + rounds > most) return;
    probe_credit_ -= rounds;
    lane.tried += rounds;
    lane.wait = std::min(lane.wait * 2, options_.longest_wait);
    drafter.wait = lane.wait;
  }
  lane.plain_rounds = 0;
  if (fed) {
    grant = {choice.option.drafter, drafts, 0};
  } else {
    grant = {choice.option.drafter, 0, unfed};
  }
}

int32_t DraftPolicy::unfed_drafts(const Choice& choice) const {
  const int32_t drafter = choice.option.drafter;
  const double one = proposal_cost(drafter, 1);
  int32_t drafts = 1;
  while (drafts < choice.offered && proposal_cost(drafter, drafts + 1) <= 1.5 * one) ++drafts;
  return drafts;
}

std::vector<Grant> DraftPolicy::allot(std::span<const LaneOffer> offers, int32_t most_rows) {
  std::vector<Grant> grants(offers.size());
  if (std::all_of(offers.begin(), offers.end(), [](const LaneOffer& offer) { return offer.options.empty(); })) {
    return grants;
  }
  const auto lanes = static_cast<int32_t>(offers.size());
  // Without the cost of a plain round there is nothing to compare with.
  if (!forward_.measured_at(1) && !forward_.measured_at(lanes)) return grants;
  std::vector<Choice> choices;
  for (const LaneOffer& offer : offers) {
    const auto found = lanes_.find(offer.lane);
    check(found != lanes_.end(), "a lane asked for drafts before it was opened");
    found->second.lanes = lanes;
    found->second.elapsed += forward_.at(lanes) / lanes;
    probe_credit_ += options_.probe_share * forward_.at(lanes) / lanes / std::max(forward_.at(1), 1e-9);
    choices.push_back(choose_alone(found->second, offer, lanes - 1));
  }
  probe_credit_ = std::min(probe_credit_, options_.probe_rounds);
  fill(choices, offers, most_rows, grants);
  int32_t room = most_rows - lanes;
  for (const Grant& grant : grants) room -= grant.drafts;
  for (size_t i = 0; i < offers.size(); ++i) {
    const int32_t before = grants[i].drafts;
    probe(lanes_.at(offers[i].lane), choices[i], offers[i], room, grants[i]);
    room -= grants[i].drafts - before;
  }
  return grants;
}

}  // namespace tensorfold::drafters
