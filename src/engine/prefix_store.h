// Kept prefixes: what earlier prompts and replies left in the caches, found again by their tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache_pool.h"

namespace tensorfold::engine {

class PrefixStore {
 public:
  virtual ~PrefixStore() = default;
  /// Puts `lane` (open and empty) behind the longest kept prefix of `tokens` that leaves at least one token to feed;
  /// returns its length, 0 when there is none.
  virtual int32_t resume(std::span<const int32_t> tokens, CacheLane& lane) = 0;
  /// Keeps the first lane.committed of `tokens`. `pinned`: worth more than others (a system block).
  virtual void keep(std::span<const int32_t> tokens, const CacheLane& lane, bool pinned) = 0;
  /// Gives up kept prefixes, least recently used first, until `pages` pages are free; false when that cannot be.
  virtual bool make_room(int32_t pages) = 0;
};

}  // namespace tensorfold::engine
