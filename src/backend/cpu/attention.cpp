// Grouped-query attention: keys and values are normalised, rotated and stored; queries likewise, then they attend.
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/heads.h"
#include "backend/cpu/selection.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {

const float* CpuBackend::stage_rotations(const Plan& plan, const Rotary& rotary) {
  const int64_t width = rotation_width(rotary);
  if (width == 0) return nullptr;
  float* to = rotation_.floats(plan.rows() * width);
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      fill_rotation(rotary, plan.positions[static_cast<size_t>(row)], to + row * width);
  });
  return to;
}

const float* CpuBackend::stage_heads(const Plan& plan, const HeadPreparation& how, const float* rotations, Tensor from,
                                     int64_t heads, int64_t step) {
  check(from.width == heads * step, "queries of another width");
  const int64_t width = heads * how.dim;
  const int64_t turned = rotation_width(how.rotary);
  float* queries = queries_.floats(plan.rows() * width);
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t h = 0; h < heads; ++h)
        prepare_head(kernels_, how, rotations != nullptr ? rotations + row * turned : nullptr,
                     row_of(from, row) + h * step, queries + row * width + h * how.dim);
    }
  });
  return queries;
}

void CpuBackend::store_keys(const Plan& plan, const Attention& a, const float* rotations) {
  auto& cache = *static_cast<CpuCache*>(a.cache);
  const int64_t width = cache.paged(a.entry).width;
  const int64_t key_width = 1LL * a.kv_heads * a.key_dim;
  const int64_t value_width = 1LL * a.kv_heads * a.value_dim;
  check(width == key_width + value_width, "an attention entry of another width");
  check(a.key.width == key_width && a.value.width == value_width, "keys or values of another width");
  cache.open_window(a.entry, view_.window_rows, width, view_.forward);
  const HeadPreparation how{a.key_norm, a.epsilon, a.key_dim, a.rotary};
  const int64_t turned = rotation_width(a.rotary);
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* to = own_row(plan, cache, a.entry, row);
      for (int64_t h = 0; h < a.kv_heads; ++h)
        prepare_head(kernels_, how, rotations != nullptr ? rotations + row * turned : nullptr,
                     row_of(a.key, row) + h * a.key_dim, to + h * a.key_dim);
      if (!a.normalise_values) {
        std::memcpy(to + key_width, row_of(a.value, row), static_cast<size_t>(value_width) * sizeof(float));
        continue;
      }
      for (int64_t h = 0; h < a.kv_heads; ++h)
        kernels_.rms_norm(row_of(a.value, row) + h * a.value_dim, nullptr, a.value_dim, a.epsilon,
                          to + key_width + h * a.value_dim);
    }
  });
}

const CpuSelection* CpuBackend::selection_of(const Selection* selection) const {
  const auto* chosen = static_cast<const CpuSelection*>(selection);
  check(chosen == nullptr || chosen->forward == view_.forward, "a selection of another forward");
  return chosen;
}

void CpuBackend::attention(const Plan& plan, const Attention& a) {
  check_running(plan);
  check(a.heads % a.kv_heads == 0, "query heads that do not share key heads evenly");
  check(rotation_width(a.rotary) <= a.key_dim, "more rotary frequencies than half a head");
  check(a.selection == nullptr || (a.window == 0 && !a.bidirectional), "a selection is causal and has no window");
  auto& cache = *static_cast<CpuCache*>(a.cache);
  check_pages(plan, cache);
  const float* rotations = stage_rotations(plan, a.rotary);
  store_keys(plan, a, rotations);
  if (!a.query) return;
  check(a.output.width == 1LL * a.heads * a.value_dim, "attention into rows of another width");
  check(!a.gated || a.key_dim == a.value_dim, "an attention gate of another width than the values");
  const HeadPreparation how{a.query_norm, a.epsilon, a.key_dim, a.rotary};
  AttendRows rows;
  rows.cache = &cache;
  rows.entry = a.entry;
  rows.groups = a.kv_heads;
  rows.heads = a.heads / a.kv_heads;
  rows.key_dim = a.key_dim;
  rows.value_dim = a.value_dim;
  rows.key_step = a.key_dim;
  rows.value_offset = 1LL * a.kv_heads * a.key_dim;
  rows.value_step = a.value_dim;
  rows.scale = a.scale;
  rows.window = a.window;
  rows.bidirectional = a.bidirectional;
  rows.selection = selection_of(a.selection);
  rows.queries = stage_heads(plan, how, rotations, a.query, a.heads, a.gated ? 2LL * a.key_dim : a.key_dim);
  rows.row_count = plan.rows();
  rows.output = row_of(a.output, 0);
  rows.output_stride = a.output.stride;
  attend(plan, rows);
  if (!a.gated) return;
  threads_.run(1LL * plan.rows() * a.heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i % a.heads;
      kernels_.multiply_sigmoid(row_of(a.query, i / a.heads) + (2 * head + 1) * a.key_dim, a.value_dim,
                                row_of(a.output, i / a.heads) + head * a.value_dim);
    }
  });
}

}  // namespace tensorfold::backend::cpu
