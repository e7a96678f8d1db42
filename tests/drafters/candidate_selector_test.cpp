#include "drafters/candidate_selector.h"

#include <cmath>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "backend/keyed_sampling.h"
#include "drafters/memory_store.h"

namespace tensorfold::drafters {
namespace {

using testing::MemoryStore;
using testing::random_values;

constexpr int32_t kVocabulary = 50;
constexpr int32_t kRank = 8;
constexpr int32_t kRows = 5;
constexpr int32_t kWidth = 4;

// A random lattice with its selector and a plain float64 copy of both codebooks.
struct Block {
  explicit Block(uint32_t seed) : random(seed) {
    before = random_values(random, kVocabulary * kRank);
    after = random_values(random, kVocabulary * kRank);
    store.add("candidate_selector.predecessor_codebook", {kVocabulary, kRank}, before);
    store.add("candidate_selector.successor_codebook.weight", {kVocabulary, kRank}, after);
    selector = CandidateSelector(store, kVocabulary, kRank);
    projected = random_values(random, kRows * kRank);
    logits = random_values(random, kRows * kWidth, 2.0F);
    for (int32_t row = 0; row < kRows; ++row) {
      std::set<int32_t> used;
      while (used.size() < kWidth) used.insert(static_cast<int32_t>(random() % kVocabulary));
      ids.insert(ids.end(), used.begin(), used.end());
    }
    lattice = {kRows, kWidth, ids, logits, projected};
  }
  [[nodiscard]] double edge(int32_t a, int32_t row, int32_t c) const {
    double sum = 0.0;
    for (int32_t k = 0; k < kRank; ++k) {
      sum += static_cast<double>(before[static_cast<size_t>(a * kRank + k)]) *
             static_cast<double>(projected[static_cast<size_t>(row * kRank + k)]) *
             static_cast<double>(after[static_cast<size_t>(c * kRank + k)]);
    }
    return sum;
  }

  std::mt19937 random;
  MemoryStore store;
  std::vector<float> before, after, projected, logits;
  std::vector<int32_t> ids;
  CandidateSelector selector;
  Lattice lattice;
};

TEST(CandidateSelector, TheWalkTakesTheBestScoreAtEachRow) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const Block block(seed);
    backend::SamplingSettings sampling;
    sampling.temperature = seed % 2 == 0 ? 0.0 : 0.8;
    sampling.seed = seed;
    const Draft draft = walk_chain(block.lattice, block.selector, 7, sampling, 100, kRows);
    ASSERT_EQ(draft.tokens.size(), static_cast<size_t>(kRows));
    int32_t predecessor = 7;
    for (int32_t row = 0; row < kRows; ++row) {
      double best = -1e300;
      int32_t token = -1;
      for (int32_t c = 0; c < kWidth; ++c) {
        const int32_t id = block.ids[static_cast<size_t>(row * kWidth + c)];
        double score =
            static_cast<double>(block.logits[static_cast<size_t>(row * kWidth + c)]) + block.edge(predecessor, row, id);
        if (sampling.temperature > 0.0) {
          const uint64_t hash = backend::keyed::candidate_hash(backend::keyed::row_key(seed, 100 + row), id);
          score = score / 0.8 + backend::keyed::gumbel(hash);
        }
        if (score > best) {
          best = score;
          token = id;
        }
      }
      ASSERT_EQ(draft.tokens[static_cast<size_t>(row)], token) << "seed " << seed << " row " << row;
      predecessor = token;
    }
  }
}

TEST(CandidateSelector, ATreeHoldsTheBestPathsAndItsPrefixesAreTrees) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Block block(seed);
    const Draft large = grow_tree(block.lattice, block.selector, 3, {}, 40, 15);
    ASSERT_EQ(large.tokens.size(), 15U);
    for (size_t i = 0; i < large.tokens.size(); ++i) {
      ASSERT_LT(large.parents[i], static_cast<int32_t>(i));
      ASSERT_TRUE(i == 0 || large.confidence[i] <= large.confidence[i - 1]) << i;
    }
    for (int32_t most = 1; most < 15; ++most) {
      const Draft small = grow_tree(block.lattice, block.selector, 3, {}, 40, most);
      ASSERT_EQ(small.tokens, std::vector<int32_t>(large.tokens.begin(), large.tokens.begin() + most));
      ASSERT_EQ(small.parents, std::vector<int32_t>(large.parents.begin(), large.parents.begin() + most));
    }
  }
}

TEST(CandidateSelector, SiblingsInATreeDiffer) {
  const Block block(5);
  const Draft tree = grow_tree(block.lattice, block.selector, 3, {}, 40, 20);
  std::set<std::pair<int32_t, int32_t>> seen;
  for (size_t i = 0; i < tree.tokens.size(); ++i) EXPECT_TRUE(seen.emplace(tree.parents[i], tree.tokens[i]).second);
}

}  // namespace
}  // namespace tensorfold::drafters
