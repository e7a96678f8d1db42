// What the schedule fuzzer compares with: token sequences and the bits that feeding them one at a time leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "engine/cache_pool.h"
#include "engine/forward.h"

namespace tensorfold::engine {

/// Tokens with the digests of what they leave when fed one at a time.
struct FuzzStory {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> logits;  ///< of the row at each position
  std::vector<uint64_t> states;  ///< after each number of tokens, 0 included
  std::vector<uint64_t> pages;   ///< of each full page
};

/// Reads what digests are made of; owns the buffers.
class FuzzProbe {
 public:
  FuzzProbe(CachePool& pool, ForwardRunner& forward);
  uint64_t logits(int32_t logit_row);
  /// Whether the logits read last were numbers, none of them NaN or infinite.
  [[nodiscard]] bool finite() const { return finite_; }
  uint64_t state(const CacheLane& lane);
  uint64_t page(int32_t page);
  /// Fills every free page and slot with NaN, so that nothing unwritten can pass for something.
  void poison();

 private:
  CachePool& pool_;
  ForwardRunner& forward_;
  std::vector<float> row_;
  bool finite_ = true;
  std::vector<std::byte> state_;
  std::vector<std::byte> page_;
};

/// Random stories: a long one, one that shares more than half of it, and short ones.
std::vector<FuzzStory> make_stories(int32_t long_story, int64_t vocabulary, std::mt19937_64& random);

/// Feeds `story` one token at a time and records the digests.
void record_story(FuzzStory& story, CachePool& pool, ForwardRunner& forward);

}  // namespace tensorfold::engine
