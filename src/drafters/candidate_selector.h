// From a block drafter's candidates to a draft: the pairwise score between neighbours, the greedy and the keyed walk,
// and the best-first tree (engine spec 5.5.6 and 5.7).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/draw.h"
#include "drafters/drafter.h"
#include "format/tensor_store.h"

namespace tensorfold::drafters {

/// One block's candidates: row r drafts the token r + 1 after the pending one.
struct Lattice {
  int32_t rows = 0;
  int32_t width = 0;                 ///< candidates a row, best first
  std::span<const int32_t> ids;      ///< [rows][width]
  std::span<const float> logits;     ///< [rows][width]
  std::span<const float> projected;  ///< [rows][rank]; empty without a selector
};

/// Low-rank affinity of neighbouring tokens: edge(a -> c at row r) = sum_k A[a][k] P_r[k] B[c][k].
class CandidateSelector {
 public:
  CandidateSelector() = default;
  /// Reads the two codebooks [vocabulary][rank], kept as bf16 on the host.
  CandidateSelector(const format::TensorStore& store, int64_t vocabulary, int32_t rank);
  [[nodiscard]] int32_t rank() const { return rank_; }
  /// Edges from `predecessor` to each of `candidates` under one row's projection; zeros without a selector.
  void edges(int32_t predecessor, std::span<const float> projected, std::span<const int32_t> candidates,
             std::span<float> out) const;

 private:
  int32_t rank_ = 0;
  std::vector<uint16_t> predecessors_;
  std::vector<uint16_t> successors_;
};

/// The chain that takes at each row the candidate with the best logit + edge (greedy) or the best keyed score
/// (logit + edge) / T + G(seed, position, candidate): the target's own noise, so a good drafter draws the target's
/// token. `position`: of the first drafted token.
Draft walk_chain(const Lattice& lattice, const CandidateSelector& selector, int32_t pending,
                 const backend::SamplingSettings& sampling, int64_t position, int32_t most);

/// Weights of the tree's child score, fitted by the reference on traced rounds.
struct TreeOptions {
  double temperature = 1.5;
  double edge = 0.6;
  double noise = 0.7;
  int32_t children = 4;  ///< of a node that is expanded
};

/// The `most` nodes of highest path score, best first; any prefix of the result is the best smaller tree.
Draft grow_tree(const Lattice& lattice, const CandidateSelector& selector, int32_t pending,
                const backend::SamplingSettings& sampling, int64_t position, int32_t most,
                const TreeOptions& options = {});

}  // namespace tensorfold::drafters
