#include "drafters/candidate_selector.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <string>

#include "backend/keyed_sampling.h"
#include "base/error.h"
#include "format/floats.h"

namespace tensorfold::drafters {
namespace {

std::vector<uint16_t> read_codebook(const format::TensorStore& store, const std::string& name, int64_t vocabulary,
                                    int32_t rank) {
  const std::string full = "candidate_selector." + name;
  const format::TensorInfo* info = store.find(full);
  if (info == nullptr) info = store.find(full + ".weight");
  if (info == nullptr) fail(ErrorKind::corrupt_file, "the drafter has no {}", full);
  if (info->shape != std::vector<int64_t>{vocabulary, rank} || !format::is_float(info->type)) {
    fail(ErrorKind::corrupt_file, "the drafter's {} is not a float matrix [{}, {}]", full, vocabulary, rank);
  }
  const auto count = static_cast<size_t>(vocabulary * rank);
  std::vector<std::byte> bytes(info->bytes);
  store.read(*info, 0, bytes);
  std::vector<float> values(count);
  format::widen(info->type, bytes, values);
  std::vector<uint16_t> codes(count);
  std::transform(values.begin(), values.end(), codes.begin(), format::float_to_bf16);
  return codes;
}

std::span<const int32_t> ids_of(const Lattice& lattice, int32_t row) {
  return lattice.ids.subspan(static_cast<size_t>(row) * static_cast<size_t>(lattice.width),
                             static_cast<size_t>(lattice.width));
}

std::span<const float> logits_of(const Lattice& lattice, int32_t row) {
  return lattice.logits.subspan(static_cast<size_t>(row) * static_cast<size_t>(lattice.width),
                                static_cast<size_t>(lattice.width));
}

std::span<const float> projected_of(const Lattice& lattice, const CandidateSelector& selector, int32_t row) {
  const auto rank = static_cast<size_t>(selector.rank());
  return rank == 0 ? std::span<const float>{} : lattice.projected.subspan(static_cast<size_t>(row) * rank, rank);
}

double noise_of(const backend::SamplingSettings& sampling, int64_t position, int32_t id) {
  if (sampling.temperature <= 0.0) return 0.0;
  return backend::keyed::gumbel(backend::keyed::candidate_hash(backend::keyed::row_key(sampling.seed, position), id));
}

double divisor_of(const backend::SamplingSettings& sampling) {
  return sampling.temperature <= 0.0 ? 1.0 : std::max(sampling.temperature, 1e-6);
}

}  // namespace

CandidateSelector::CandidateSelector(const format::TensorStore& store, int64_t vocabulary, int32_t rank)
    : rank_(rank),
      predecessors_(read_codebook(store, "predecessor_codebook", vocabulary, rank)),
      successors_(read_codebook(store, "successor_codebook", vocabulary, rank)) {}

void CandidateSelector::edges(int32_t predecessor, std::span<const float> projected,
                              std::span<const int32_t> candidates, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0F);
  if (rank_ == 0) return;
  const auto rank = static_cast<size_t>(rank_);
  const uint16_t* from = predecessors_.data() + static_cast<size_t>(predecessor) * rank;
  for (size_t c = 0; c < candidates.size(); ++c) {
    const uint16_t* to = successors_.data() + static_cast<size_t>(candidates[c]) * rank;
    float sum = 0.0F;
    for (size_t k = 0; k < rank; ++k)
      sum += format::bf16_to_float(from[k]) * projected[k] * format::bf16_to_float(to[k]);
    out[c] = sum;
  }
}

Draft walk_chain(const Lattice& lattice, const CandidateSelector& selector, int32_t pending,
                 const backend::SamplingSettings& sampling, int64_t position, int32_t most) {
  Draft draft;
  std::vector<float> edges(static_cast<size_t>(lattice.width));
  const double divisor = divisor_of(sampling);
  int32_t predecessor = pending;
  for (int32_t row = 0; row < std::min(lattice.rows, most); ++row) {
    const auto ids = ids_of(lattice, row);
    const auto logits = logits_of(lattice, row);
    selector.edges(predecessor, projected_of(lattice, selector, row), ids, edges);
    size_t best = 0;
    double best_score = -std::numeric_limits<double>::infinity();
    double total = 0.0;
    double top = -std::numeric_limits<double>::infinity();
    for (size_t c = 0; c < ids.size(); ++c) top = std::max(top, static_cast<double>(logits[c] + edges[c]));
    for (size_t c = 0; c < ids.size(); ++c) {
      const double value = static_cast<double>(logits[c] + edges[c]);
      total += std::exp(value - top);
      const double score = value / divisor + noise_of(sampling, position + row, ids[c]);
      if (score > best_score) {
        best = c;
        best_score = score;
      }
    }
    predecessor = ids[best];
    draft.tokens.push_back(predecessor);
    draft.confidence.push_back(
        static_cast<float>(std::exp(static_cast<double>(logits[best] + edges[best]) - top) / total));
  }
  return draft;
}

Draft grow_tree(const Lattice& lattice, const CandidateSelector& selector, int32_t pending,
                const backend::SamplingSettings& sampling, int64_t position, int32_t most, const TreeOptions& options) {
  struct Node {
    double value;
    int32_t order;  // of creation: equal values come out in this order
    int32_t token;
    int32_t parent;
    int32_t depth;
  };
  const auto later = [](const Node& a, const Node& b) {
    return a.value != b.value ? a.value < b.value : a.order > b.order;
  };
  std::priority_queue<Node, std::vector<Node>, decltype(later)> open(later);
  const double divisor = divisor_of(sampling);
  const auto width = static_cast<size_t>(lattice.width);
  std::vector<float> edges(width);
  std::vector<double> scores(width);
  std::vector<size_t> best(width);
  int32_t created = 0;

  const auto expand = [&](int32_t token, int32_t parent, int32_t depth, double value) {
    if (depth >= lattice.rows) return;
    const auto ids = ids_of(lattice, depth);
    const auto logits = logits_of(lattice, depth);
    selector.edges(token, projected_of(lattice, selector, depth), ids, edges);
    double top = -std::numeric_limits<double>::infinity();
    for (size_t c = 0; c < width; ++c) {
      const double raw = static_cast<double>(logits[c]) / divisor +
                         options.edge * static_cast<double>(edges[c]) / divisor +
                         options.noise * noise_of(sampling, position + depth, ids[c]);
      scores[c] = raw / options.temperature;
      top = std::max(top, scores[c]);
      best[c] = c;
    }
    double total = 0.0;
    for (const double score : scores) total += std::exp(score - top);
    const double normaliser = top + std::log(total);
    const size_t count = std::min(width, static_cast<size_t>(options.children));
    std::partial_sort(
        best.begin(), best.begin() + static_cast<std::ptrdiff_t>(count), best.end(),
        [&](size_t a, size_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : ids[a] < ids[b]; });
    for (size_t i = 0; i < count; ++i)
      open.push({value + scores[best[i]] - normaliser, created++, ids[best[i]], parent, depth + 1});
  };

  Draft draft;
  expand(pending, -1, 0, 0.0);
  while (!open.empty() && static_cast<int32_t>(draft.tokens.size()) < most) {
    const Node node = open.top();
    open.pop();
    const auto index = static_cast<int32_t>(draft.tokens.size());
    draft.tokens.push_back(node.token);
    draft.parents.push_back(node.parent);
    draft.confidence.push_back(static_cast<float>(std::exp(node.value)));
    expand(node.token, index, node.depth, node.value);
  }
  return draft;
}

}  // namespace tensorfold::drafters
