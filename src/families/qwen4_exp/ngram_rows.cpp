#include "families/qwen4_exp/ngram_rows.h"

#include <limits>
#include <numeric>

namespace tensorfold::families::qwen4_exp {
namespace {

constexpr uint64_t kStep = 0x9E3779B97F4A7C15ULL;

/// One output of SplitMix64 (Steele, Lea, Flood 2014) from this state.
uint64_t split_mix(uint64_t state) {
  state += kStep;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ULL;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBULL;
  return state ^ (state >> 31);
}

bool is_prime(int64_t number) {
  if (number < 4) return number >= 2;
  for (int64_t factor = 2; factor * factor <= number; ++factor) {
    if (number % factor == 0) return false;
  }
  return true;
}

/// The first primes from the base on.
std::vector<int64_t> head_sizes(const NgramConfig& ngram) {
  std::vector<int64_t> sizes;
  for (int64_t number = ngram.vocabulary_base; sizes.size() < static_cast<size_t>(ngram.heads()); ++number) {
    if (is_prime(number)) sizes.push_back(number);
  }
  return sizes;
}

}  // namespace

backend::NgramHashing derive_hashing(const NgramConfig& ngram, int32_t vocabulary) {
  backend::NgramHashing hashing;
  // Odd, and so small that a product with any token stays below 2^63.
  const auto half = static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / vocabulary / 2);
  for (uint64_t i = 0; i < static_cast<uint64_t>(ngram.longest); ++i) {
    const uint64_t drawn = split_mix(static_cast<uint64_t>(ngram.seed) + kStep * (i + 1)) % half;
    hashing.multipliers.push_back(static_cast<int64_t>(2 * drawn + 1));
  }
  hashing.sizes = head_sizes(ngram);
  hashing.offsets.resize(hashing.sizes.size());
  std::exclusive_scan(hashing.sizes.begin(), hashing.sizes.end(), hashing.offsets.begin(), int64_t{0});
  hashing.heads_per_order = ngram.heads_per_order;
  hashing.end_token = ngram.end_token;
  return hashing;
}

std::vector<int64_t> shard_rows(const NgramConfig& ngram) {
  const std::vector<int64_t> sizes = head_sizes(ngram);
  int64_t rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  rows = (rows + ngram.row_multiple - 1) / ngram.row_multiple * ngram.row_multiple;
  std::vector<int64_t> parts(static_cast<size_t>(ngram.shards), rows / ngram.shards);
  for (int64_t part = 0; part < rows % ngram.shards; ++part) ++parts[static_cast<size_t>(part)];
  return parts;
}

}  // namespace tensorfold::families::qwen4_exp
