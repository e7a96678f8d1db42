#include "drafters/cost_table.h"

#include <algorithm>
#include <iterator>

namespace tensorfold::drafters {
namespace {

constexpr double kWeight = 0.1;
constexpr double kMostChange = 0.1;
// A mean of few measurements moves faster; a calibration counts for so many.
constexpr int32_t kCalibrated = 3;
// How much of a change is the machine's, not this count's.
constexpr double kShared = 0.8;
// What one row is taken to cost before anything was measured; only ratios matter then.
constexpr double kUnmeasured = 1e-3;
constexpr int32_t kKnown = 160;

}  // namespace

void CostTable::set(int32_t count, double seconds) {
  known_.clear();
  means_.insert_or_assign(count, Mean{seconds, kCalibrated});
}

double CostTable::record(int32_t count, double seconds) {
  const auto [place, added] = means_.try_emplace(count, Mean{seconds, 1});
  Mean& mean = place->second;
  if (added || !(mean.seconds > 0.0)) {
    known_.clear();
    return 1.0;
  }
  mean.times = std::min(mean.times + 1, 1 << 20);
  const double weight = std::max(kWeight, 1.0 / (mean.times + 1));
  const double change = weight * (std::clamp(seconds / mean.seconds, 1.0 - kMostChange, 1.0 + kMostChange) - 1.0);
  const double shared = 1.0 + kShared * change;
  mean.seconds *= (1.0 + change) / shared;
  scale(shared);
  return shared;
}

void CostTable::scale(double factor) {
  known_.clear();
  for (auto& [count, mean] : means_) mean.seconds *= factor;
}

double CostTable::at(int32_t count) const {
  // A round asks for every number of drafts of every lane: looked up, not worked out.
  if (count < 0 || count >= kKnown || means_.size() < 2) return between_means(count);
  if (known_.empty()) fill_known();
  return known_[static_cast<size_t>(count)];
}

void CostTable::fill_known() const {
  known_.reserve(kKnown);
  const int32_t first = means_.begin()->first;
  const int32_t last = std::min(means_.rbegin()->first, kKnown - 1);
  for (int32_t n = 0; n < std::min(first, kKnown); ++n) known_.push_back(between_means(n));
  double floor = 0.0;
  for (auto above = means_.begin(); above != means_.end(); ++above) {
    if (above == means_.begin()) {
      floor = above->second.seconds;
      known_.push_back(floor);
      continue;
    }
    const auto below = std::prev(above);
    const double slope = (above->second.seconds - below->second.seconds) / (above->first - below->first);
    for (int32_t n = below->first + 1; n <= std::min(above->first, last); ++n) {
      known_.push_back(std::max(floor, below->second.seconds + slope * (n - below->first)));
    }
    floor = std::max(floor, above->second.seconds);
  }
  while (static_cast<int32_t>(known_.size()) < kKnown)
    known_.push_back(between_means(static_cast<int32_t>(known_.size())));
}

double CostTable::between_means(int32_t count) const {
  if (means_.empty()) return kUnmeasured * (1.0 + slope_ * (count - 1));
  const auto above = means_.lower_bound(count);
  double floor = 0.0;
  for (auto below = means_.begin(); below != above; ++below) floor = std::max(floor, below->second.seconds);
  if (above != means_.end() && above->first == count) return std::max(floor, above->second.seconds);
  if (above == means_.begin())
    return above->second.seconds * (1.0 + slope_ * (count - 1)) / (1.0 + slope_ * (above->first - 1));
  const auto below = std::prev(above);
  if (above == means_.end()) {
    // Beyond the widest measured count: its last slope where there are two, else the guess.
    if (below == means_.begin())
      return below->second.seconds * (1.0 + slope_ * (count - 1)) / (1.0 + slope_ * (below->first - 1));
    const auto before = std::prev(below);
    const double slope =
        std::max(0.0, (below->second.seconds - before->second.seconds) / (below->first - before->first));
    return std::max(floor, below->second.seconds + slope * (count - below->first));
  }
  const double share = static_cast<double>(count - below->first) / (above->first - below->first);
  return std::max(floor, below->second.seconds + share * (above->second.seconds - below->second.seconds));
}

}  // namespace tensorfold::drafters
