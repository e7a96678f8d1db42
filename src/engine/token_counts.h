// How often each token stands in a prompt and its reply, for penalties.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/draw.h"

namespace tensorfold::engine {

/// Counts of one sequence; along() adds a window row's own path without committing to it.
class TokenCounts {
 public:
  void add_prompt(std::span<const int32_t> tokens);
  void add_reply(int32_t token);
  /// The counts with `path` taken as further reply tokens.
  [[nodiscard]] std::vector<backend::TokenCount> along(std::span<const int32_t> path) const;

 private:
  std::vector<backend::TokenCount> counts_;
  std::unordered_map<int32_t, size_t> place_;
};

}  // namespace tensorfold::engine
