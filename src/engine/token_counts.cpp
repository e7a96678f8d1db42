#include "engine/token_counts.h"

namespace tensorfold::engine {
namespace {

using Counts = std::vector<backend::TokenCount>;

}  // namespace

void TokenCounts::add_prompt(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    const auto [place, added] = place_.try_emplace(token, counts_.size());
    if (added) counts_.push_back({.token = token});
    ++counts_[place->second].in_prompt;
  }
}

void TokenCounts::add_reply(int32_t token) {
  const auto [place, added] = place_.try_emplace(token, counts_.size());
  if (added) counts_.push_back({.token = token});
  ++counts_[place->second].in_reply;
}

std::vector<backend::TokenCount> TokenCounts::along(std::span<const int32_t> path) const {
  Counts counts = counts_;
  for (const int32_t token : path) {
    if (const auto place = place_.find(token); place != place_.end()) {
      ++counts[place->second].in_reply;
      continue;
    }
    // A token that only the path holds; paths are short.
    size_t i = counts_.size();
    while (i < counts.size() && counts[i].token != token) ++i;
    if (i == counts.size()) counts.push_back({.token = token});
    ++counts[i].in_reply;
  }
  return counts;
}

}  // namespace tensorfold::engine
