#include "drafters/copy_drafter.h"

#include <algorithm>

namespace tensorfold::drafters {

uint64_t CopyIndex::hash(std::span<const int32_t> run) const {
  uint64_t h = 0x9E3779B97F4A7C15ULL;
  for (const int32_t token : run) {
    h = (h ^ static_cast<uint32_t>(token)) * 0xBF58476D1CE4E5B9ULL;
    h ^= h >> 29;
  }
  return h;
}

void CopyIndex::extend(std::span<const int32_t> context) {
  const auto run = static_cast<size_t>(options_.match);
  const auto last = static_cast<int32_t>(context.size()) - 1;
  for (int32_t end = std::max(indexed_ + 1, options_.match); end <= last; ++end) {
    ends_[hash(context.subspan(static_cast<size_t>(end) - run, run))].push_back(end);
  }
  indexed_ = std::max(indexed_, last);
}

int32_t CopyIndex::find(std::span<const int32_t> context) const {
  const auto run = static_cast<size_t>(options_.match);
  if (context.size() <= run) return -1;
  const auto found = ends_.find(hash(context.last(run)));
  if (found == ends_.end()) return -1;
  const auto size = static_cast<int32_t>(context.size());
  int32_t best = -1;
  int32_t best_length = options_.match - 1;
  int32_t compared = 0;
  for (auto end = found->second.rbegin(); end != found->second.rend() && compared < options_.candidates;
       ++end, ++compared) {
    int32_t length = 0;
    while (length < options_.longest_match && length < *end &&
           context[static_cast<size_t>(*end - 1 - length)] == context[static_cast<size_t>(size - 1 - length)]) {
      ++length;
    }
    if (length > best_length) {
      best = *end;
      best_length = length;
    }
  }
  return best;
}

void CopyDrafter::open(int32_t lane, std::span<const int32_t> context, int32_t /*cached*/) {
  const auto place = lanes_.insert_or_assign(lane, Lane{CopyIndex(options_), options_.first_window}).first;
  place->second.index.extend(context);
}

void CopyDrafter::propose(std::span<const DraftRequest> requests, std::span<Draft> out) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    out[i] = {};
    const auto found = lanes_.find(request.lane);
    if (found == lanes_.end()) continue;
    Lane& lane = found->second;
    lane.index.extend(request.context);
    if (lane.silent_rounds > 0) {
      --lane.silent_rounds;
      continue;
    }
    const int32_t from = lane.index.find(request.context);
    if (from < 0) continue;
    const auto start = static_cast<size_t>(from);
    const auto count = static_cast<size_t>(std::max(0, std::min(request.most, lane.window)));
    for (size_t k = 0; k < count; ++k) {
      const size_t at = start + k;
      out[i].tokens.push_back(at < request.context.size() ? request.context[at]
                                                          : out[i].tokens[at - request.context.size()]);
    }
  }
}

void CopyDrafter::observe(int32_t lane_id, const Draft& draft, int32_t accepted) {
  const auto found = lanes_.find(lane_id);
  if (found == lanes_.end()) return;
  Lane& lane = found->second;
  const bool whole = accepted == static_cast<int32_t>(draft.tokens.size());
  lane.window = whole ? std::min(options_.widest_window, lane.window * 2) : options_.first_window;
  lane.misses = accepted == 0 ? lane.misses + 1 : 0;
  if (lane.misses >= options_.misses) {
    lane.misses = 0;
    lane.silent_rounds = options_.silence;
  }
}

}  // namespace tensorfold::drafters
