// The sparse index: keys are stored, completed blocks pooled into the row of their last position, and every row that
// has more blocks than it may keep scores them and keeps the best.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/heads.h"
#include "backend/cpu/selection.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

/// Blocks that one unit of work scores.
constexpr int64_t kScoredAtOnce = 128;

const float* values_of(const Vector* vector) { return static_cast<const CpuVector*>(vector)->values.data(); }

/// The `chosen` blocks of the highest score, ascending; NaN scores nothing.
void choose_blocks(const float* scores, int64_t complete, int64_t chosen, std::vector<int32_t>& order, int32_t* to) {
  order.resize(static_cast<size_t>(complete));
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int32_t b) { return scores[b] == scores[b] ? scores[b] : -HUGE_VALF; };
  std::nth_element(order.begin(), order.begin() + chosen, order.end(),
                   [&](int32_t a, int32_t b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
  std::copy(order.begin(), order.begin() + chosen, to);
  std::sort(to, to + chosen);
}

void check_index(const BlockIndex& a, const CpuCache& cache) {
  const int64_t width = (a.gate ? 2LL : 1LL) * a.key_dim;
  check(a.block >= 1 && a.chosen >= 1, "an index of empty blocks");
  check(cache.paged(a.entry).width == width, "an index entry of another width");
  check(a.key.width == a.key_dim && (!a.gate || a.gate.width == a.key_dim), "index keys of another width");
  check(!a.gate || (a.gate_position != nullptr && a.gate_position->size() == 1LL * a.block * a.key_dim),
        "gate positions of another size");
  check(rotation_width(a.rotary) <= a.key_dim, "more rotary frequencies than half a head");
  check(!a.weight || a.weight.width == a.heads, "index weights of another width");
}

}  // namespace

std::unique_ptr<Selection> CpuBackend::make_selection(int64_t rows, int32_t chosen, int32_t block) {
  return std::make_unique<CpuSelection>(rows, chosen, block);
}

void CpuBackend::store_index_keys(const Plan& plan, const BlockIndex& a) {
  auto& cache = *static_cast<CpuCache*>(a.cache);
  cache.open_window(a.entry, view_.window_rows, cache.paged(a.entry).width, view_.forward);
  const auto bytes = static_cast<size_t>(a.key_dim) * sizeof(float);
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* to = own_row(plan, cache, a.entry, row);
      std::memcpy(to, row_of(a.key, row), bytes);
      if (a.gate) std::memcpy(to + a.key_dim, row_of(a.gate, row), bytes);
    }
  });
  // Rows of a block's last position read raw rows above them and their own; no other row reads what they replace.
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    std::vector<const float*> keys(static_cast<size_t>(a.block));
    std::vector<float> rotation(static_cast<size_t>(rotation_width(a.rotary)));
    std::vector<float> pooled(static_cast<size_t>(cache.paged(a.entry).width));
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = own_position(plan, row) + 1 - a.block;
      if (first % a.block != 0) continue;
      seen_rows(plan, cache, a.entry, row, first, a.block, false, keys.data());
      std::fill(pooled.begin(), pooled.end(), 0.0F);
      if (a.gate) {
        kernels_.pool_gated(keys.data(), values_of(a.gate_position), a.block, a.key_dim, pooled.data());
      } else {
        kernels_.pool_mean(keys.data(), a.block, a.key_dim, pooled.data());
      }
      if (a.pooled_norm != nullptr)
        kernels_.rms_norm(pooled.data(), values_of(a.pooled_norm), a.key_dim, a.epsilon, pooled.data());
      fill_rotation(a.rotary, static_cast<int32_t>(first), rotation.data());
      rotate(a.rotary, rotation.data(), pooled.data());
      std::memcpy(own_row(plan, cache, a.entry, row), pooled.data(), pooled.size() * sizeof(float));
    }
  });
}

void CpuBackend::score_and_choose(const Plan& plan, const BlockIndex& a, const float* queries) {
  auto& cache = *static_cast<CpuCache*>(a.cache);
  auto& selection = *static_cast<CpuSelection*>(a.selection);
  struct Unit {
    int64_t row;
    int64_t first_block;
  };
  std::vector<Unit> units;
  std::vector<int64_t> sparse_rows;
  std::vector<int64_t> score_offsets(static_cast<size_t>(plan.rows()));
  int64_t scores_wanted = 0;
  for (int64_t row = 0; row < plan.rows(); ++row) {
    const auto r = static_cast<size_t>(row);
    const int64_t complete = (own_position(plan, row) + 1) / a.block;
    selection.complete[r] = complete;
    selection.sparse[r] = complete > a.chosen ? 1 : 0;
    if (complete <= a.chosen) continue;
    sparse_rows.push_back(row);
    score_offsets[r] = scores_wanted;
    scores_wanted += complete;
    for (int64_t block = 0; block < complete; block += kScoredAtOnce) units.push_back({row, block});
  }
  float* scores = results_.floats(scores_wanted);
  threads_.run(static_cast<int64_t>(units.size()), [&](int64_t begin, int64_t end, int worker) {
    float* weights = worker_floats(worker, a.heads);
    const float* keys[kScoredAtOnce];
    for (int64_t u = begin; u < end; ++u) {
      const auto [row, first_block] = units[static_cast<size_t>(u)];
      for (int32_t h = 0; h < a.heads; ++h) weights[h] = (a.weight ? row_of(a.weight, row)[h] : 1.0F) * a.weight_factor;
      BlockScores s;
      s.count = std::min(kScoredAtOnce, selection.complete[static_cast<size_t>(row)] - first_block);
      for (int64_t j = 0; j < s.count; ++j)
        keys[j] = seen_row(plan, cache, a.entry, row, (first_block + j + 1) * a.block - 1);
      s.keys = keys;
      s.queries = queries + row * a.heads * a.key_dim;
      s.weights = weights;
      s.heads = a.heads;
      s.dim = a.key_dim;
      s.scale = a.scale;
      s.scores = scores + score_offsets[static_cast<size_t>(row)] + first_block;
      kernels_.score_blocks(s);
    }
  });
  threads_.run(static_cast<int64_t>(sparse_rows.size()), [&](int64_t begin, int64_t end, int) {
    std::vector<int32_t> order;
    for (int64_t i = begin; i < end; ++i) {
      const auto row = static_cast<size_t>(sparse_rows[static_cast<size_t>(i)]);
      choose_blocks(scores + score_offsets[row], selection.complete[row], a.chosen, order,
                    &selection.blocks[row * static_cast<size_t>(a.chosen)]);
    }
  });
}

void CpuBackend::block_index(const Plan& plan, const BlockIndex& a) {
  check_running(plan);
  auto& cache = *static_cast<CpuCache*>(a.cache);
  check_index(a, cache);
  check_pages(plan, cache);
  store_index_keys(plan, a);
  if (!a.query) return;
  auto* selection = static_cast<CpuSelection*>(a.selection);
  check(selection != nullptr && selection->chosen == a.chosen && selection->block == a.block &&
            plan.rows() <= static_cast<int64_t>(selection->sparse.size()),
        "a selection of another size");
  selection->forward = view_.forward;
  const HeadPreparation how{a.query_norm, a.epsilon, a.key_dim, a.rotary};
  const float* queries = stage_heads(plan, how, stage_rotations(plan, a.rotary), a.query, a.heads, a.key_dim);
  score_and_choose(plan, a, queries);
}

}  // namespace tensorfold::backend::cpu
