// Attention: keys and values are normalised, rotated and stored; then every (row, key head) attends partition by
// partition of 512 absolute positions. Few rows are spread over partitions too; the merge order is the same.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/scalar_math.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

constexpr int64_t kPartition = 512;

/// Cosines and sines of a row's position, [frequencies] each: angle = fp32 position * fp32 frequency, rounded to fp32.
void fill_rotation(const CpuVector& frequencies, int32_t position, float* to) {
  const int64_t n = frequencies.size();
  for (int64_t d = 0; d < n; ++d) {
    const float angle = static_cast<float>(position) * frequencies.values[static_cast<size_t>(d)];
    const SineCosine value = portable_sine_cosine(angle);
    to[d] = value.cosine;
    to[n + d] = value.sine;
  }
}

void rotate(float* head, const float* rotation, int64_t n, bool interleaved) {
  for (int64_t d = 0; d < n; ++d) {
    float& a = head[interleaved ? 2 * d : d];
    float& b = head[interleaved ? 2 * d + 1 : d + n];
    const float x = a;
    const float y = b;
    a = x * rotation[d] - y * rotation[n + d];
    b = y * rotation[d] + x * rotation[n + d];
  }
}

/// Norm and rotation of one head.
void prepare_head(const KernelTable& kernels, const Attention& a, const Vector* norm, const float* rotation,
                  const float* from, float* to) {
  if (norm != nullptr) {
    kernels.rms_norm(from, static_cast<const CpuVector*>(norm)->values.data(), a.key_dim, a.epsilon, to);
  } else {
    std::memcpy(to, from, static_cast<size_t>(a.key_dim) * sizeof(float));
  }
  if (rotation != nullptr) rotate(to, rotation, a.rotary.frequencies->size(), a.rotary.interleaved);
}

/// Which absolute positions a row sees: [first, last).
struct Span {
  int64_t first = 0;
  int64_t last = 0;
  [[nodiscard]] int64_t first_partition() const { return first / kPartition; }
  [[nodiscard]] int64_t partitions() const { return (last + kPartition - 1) / kPartition - first_partition(); }
};

}  // namespace

void CpuBackend::find_keys(const Plan& plan, const Attention& a, int32_t row, int64_t first, int64_t count,
                           const float** rows) const {
  const auto& cache = *static_cast<const CpuCache*>(a.cache);
  const SequenceRows& sequence = plan.sequences[static_cast<size_t>(plan.owner[static_cast<size_t>(row)])];
  const std::span<const int32_t> pages = plan.pages_of(sequence);
  const int64_t page_tokens = cache.size().page_tokens;
  const int64_t in_pages = sequence.committed + (sequence.keep_all ? sequence.row_count : 0);
  int64_t j = 0;
  while (j < count && first + j < in_pages) {
    const int64_t position = first + j;
    const int64_t token = position % page_tokens;
    const int64_t run = std::min({page_tokens - token, count - j, in_pages - position});
    const float* from = cache.page_row(a.entry, pages[static_cast<size_t>(position / page_tokens)], token);
    const int64_t width = cache.paged(a.entry).width;
    for (int64_t i = 0; i < run; ++i) rows[j + i] = from + i * width;
    j += run;
  }
  if (j == count) return;
  const int64_t width = cache.paged(a.entry).width;
  const float* window = static_cast<CpuCache*>(a.cache)->window(a.entry).rows.data();
  const auto window_row = [&](int32_t r) { return window + view_.window_index[static_cast<size_t>(r)] * width; };
  if (a.bidirectional) {
    for (; j < count; ++j) rows[j] = window_row(static_cast<int32_t>(sequence.first_row + first + j - in_pages));
    return;
  }
  // The row's own path, upwards: depth d stands at position committed + d.
  for (int32_t r = row; r >= 0; r = plan.parents[static_cast<size_t>(r)]) {
    const int64_t place = sequence.committed + view_.depth[static_cast<size_t>(r)] - first;
    if (place < j) break;
    if (place < count) rows[place] = window_row(r);
  }
}

void CpuBackend::store_keys(const Plan& plan, const Attention& a, const float* rotation) {
  auto& cache = *static_cast<CpuCache*>(a.cache);
  const int64_t width = cache.paged(a.entry).width;
  const int64_t key_width = 1LL * a.kv_heads * a.key_dim;
  const int64_t value_width = 1LL * a.kv_heads * a.value_dim;
  check(width == key_width + value_width, "an attention entry of another width");
  check(a.key.width == key_width && a.value.width == value_width, "keys or values of another width");
  WindowRecord& window = cache.open_window(a.entry, view_.window_rows, width, view_.forward);
  const int64_t rotation_width = rotation != nullptr ? 2 * a.rotary.frequencies->size() : 0;
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const auto r = static_cast<size_t>(row);
      float* to = window.rows.data() + view_.window_index[r] * width;
      if (view_.window_index[r] < 0) {
        const SequenceRows& sequence = plan.sequences[static_cast<size_t>(plan.owner[r])];
        const int64_t position = sequence.committed + view_.depth[r];
        const int64_t page_tokens = cache.size().page_tokens;
        const int32_t page = plan.pages_of(sequence)[static_cast<size_t>(position / page_tokens)];
        to = cache.page_row(a.entry, page, position % page_tokens);
      }
      const float* own_rotation = rotation != nullptr ? rotation + row * rotation_width : nullptr;
      for (int64_t h = 0; h < a.kv_heads; ++h) {
        prepare_head(kernels_, a, a.key_norm, own_rotation, row_of(a.key, row) + h * a.key_dim, to + h * a.key_dim);
      }
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

const float* CpuBackend::stage_queries(const Plan& plan, const Attention& a, const float* rotation) {
  const int64_t width = 1LL * a.heads * a.key_dim;
  const int64_t step = a.gated ? 2LL * a.key_dim : a.key_dim;
  check(a.query.width == a.heads * step, "queries of another width");
  float* queries = queries_.floats(plan.rows() * width);
  const int64_t rotation_width = rotation != nullptr ? 2 * a.rotary.frequencies->size() : 0;
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* own_rotation = rotation != nullptr ? rotation + row * rotation_width : nullptr;
      for (int64_t h = 0; h < a.heads; ++h) {
        prepare_head(kernels_, a, a.query_norm, own_rotation, row_of(a.query, row) + h * step,
                     queries + row * width + h * a.key_dim);
      }
    }
  });
  return queries;
}

void CpuBackend::attend(const Plan& plan, const Attention& a, const float* queries) {
  const int64_t group = a.heads / a.kv_heads;
  const int64_t result_stride = (a.value_dim + 2 + 15) / 16 * 16;
  std::vector<Span> spans(static_cast<size_t>(plan.rows()));
  int64_t most_partitions = 1;
  for (size_t r = 0; r < spans.size(); ++r) {
    const SequenceRows& sequence = plan.sequences[static_cast<size_t>(plan.owner[r])];
    const int64_t own = sequence.committed + view_.depth[r];
    spans[r].last = a.bidirectional ? sequence.committed + sequence.row_count : own + 1;
    if (a.window > 0) spans[r].first = std::max<int64_t>(0, own - a.window + 1);
    most_partitions = std::max(most_partitions, spans[r].partitions());
  }
  const int64_t units = plan.rows() * a.kv_heads;
  const bool spread = most_partitions > 1 && units < 4LL * threads_.size();
  // Results of a unit: [partition][head of the group][result_stride].
  const int64_t unit_floats = most_partitions * group * result_stride;
  float* shared = spread ? results_.floats(units * unit_floats) : nullptr;

  const auto attend_partition = [&](int64_t unit, int64_t index, float* results) {
    const int64_t row = unit / a.kv_heads;
    const int64_t kv_head = unit % a.kv_heads;
    const Span& span = spans[static_cast<size_t>(row)];
    if (index >= span.partitions()) return;
    const int64_t partition = span.first_partition() + index;
    const float* rows[kPartition];
    AttendPartition p;
    p.first_position = std::max(span.first, partition * kPartition);
    p.count = std::min(span.last, (partition + 1) * kPartition) - p.first_position;
    find_keys(plan, a, static_cast<int32_t>(row), p.first_position, p.count, rows);
    p.rows = rows;
    p.key_offset = kv_head * a.key_dim;
    p.value_offset = 1LL * a.kv_heads * a.key_dim + kv_head * a.value_dim;
    p.key_dim = a.key_dim;
    p.value_dim = a.value_dim;
    p.heads = group;
    p.queries = queries + (row * a.heads + kv_head * group) * a.key_dim;
    p.scale = a.scale;
    p.results = results + index * group * result_stride;
    p.result_stride = result_stride;
    kernels_.attend(p);
  };
  const auto finish = [&](int64_t unit, const float* results) {
    const int64_t row = unit / a.kv_heads;
    for (int64_t g = 0; g < group; ++g) {
      const int64_t head = unit % a.kv_heads * group + g;
      float* to = row_of(a.output, row) + head * a.value_dim;
      kernels_.merge(results + g * result_stride, spans[static_cast<size_t>(row)].partitions(), group * result_stride,
                     a.value_dim, to);
      if (a.gated) kernels_.multiply_sigmoid(row_of(a.query, row) + (2 * head + 1) * a.key_dim, a.value_dim, to);
    }
  };

  if (spread) {
    threads_.run(units * most_partitions, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i)
        attend_partition(i / most_partitions, i % most_partitions, shared + i / most_partitions * unit_floats);
    });
    threads_.run(units, [&](int64_t begin, int64_t end, int) {
      for (int64_t unit = begin; unit < end; ++unit) finish(unit, shared + unit * unit_floats);
    });
    return;
  }
  threads_.run(units, [&](int64_t begin, int64_t end, int worker) {
    float* results = worker_floats(worker, unit_floats);
    for (int64_t unit = begin; unit < end; ++unit) {
      for (int64_t index = 0; index < spans[static_cast<size_t>(unit / a.kv_heads)].partitions(); ++index)
        attend_partition(unit, index, results);
      finish(unit, results);
    }
  });
}

void CpuBackend::check_pages(const Plan& plan, const CpuCache& cache) {
  for (const SequenceRows& sequence : plan.sequences) {
    const int64_t tokens = sequence.committed + (sequence.keep_all ? sequence.row_count : 0);
    check(tokens <= 1LL * sequence.page_count * cache.size().page_tokens, "a page table that is too short");
    for (const int32_t page : plan.pages_of(sequence)) check(page >= 0 && page < cache.size().pages, "an unknown page");
  }
}

void CpuBackend::attention(const Plan& plan, const Attention& a) {
  check_running(plan);
  check(a.heads % a.kv_heads == 0, "query heads that do not share key heads evenly");
  const float* rotation = nullptr;
  if (a.rotary.frequencies != nullptr) {
    const auto& frequencies = *static_cast<const CpuVector*>(a.rotary.frequencies);
    check(2 * frequencies.size() <= a.key_dim, "more rotary frequencies than half a head");
    float* to = rotation_.floats(plan.rows() * 2 * frequencies.size());
    threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row)
        fill_rotation(frequencies, plan.positions[static_cast<size_t>(row)], to + row * 2 * frequencies.size());
    });
    rotation = to;
  }
  check_pages(plan, *static_cast<const CpuCache*>(a.cache));
  store_keys(plan, a, rotation);
  if (!a.query) return;
  check(a.output.width == 1LL * a.heads * a.value_dim, "attention into rows of another width");
  check(!a.gated || a.key_dim == a.value_dim, "an attention gate of another width than the values");
  attend(plan, a, stage_queries(plan, a, rotation));
}

void CpuBackend::commit_pages(const Plan& plan, const PlanView& view, CpuCache& cache, int32_t entry,
                              const KeptPath& path) {
  const SequenceRows& sequence = plan.sequences[static_cast<size_t>(path.sequence)];
  const std::span<const int32_t> pages = plan.pages_of(sequence);
  const int64_t width = cache.paged(entry).width;
  const int64_t page_tokens = cache.size().page_tokens;
  for (size_t i = 0; i < path.rows.size(); ++i) {
    const int64_t position = sequence.committed + static_cast<int64_t>(i);
    const int32_t index = view.window_index[static_cast<size_t>(path.rows[i])];
    std::memcpy(cache.page_row(entry, pages[static_cast<size_t>(position / page_tokens)], position % page_tokens),
                cache.window(entry).rows.data() + index * width, static_cast<size_t>(width) * sizeof(float));
  }
}

}  // namespace tensorfold::backend::cpu
