// What an n-gram embedding adds to the streams (Flash Next specification 3.3, 2 to 8). The first pass makes every row's
// gated value g and its norm f; the second convolves f along each row's own path. Records of a window are the f rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/recurrence.h"
#include "backend/cpu/scalar_math.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

/// Positions from the oldest tap to the row itself.
int64_t span_of(const DilatedConvolutionShape& shape) { return shape.rows() + 1; }

}  // namespace

void CpuBackend::ngram_gate(const NgramBranch& a, int64_t row, float* keys, float* queries, float* gated,
                            float* normed) const {
  const int64_t width = a.value.width;
  const int64_t count = a.streams.width / width;
  norm_streams(row_of(a.key, row), *a.key_norm, count, width, a.epsilon, keys);
  norm_streams(row_of(a.streams, row), *a.query_norm, count, width, a.epsilon, queries);
  const double root = std::sqrt(static_cast<double>(width));
  for (int64_t s = 0; s < count; ++s) {
    const double r = static_cast<double>(kernels_.dot(keys + s * width, queries + s * width, width)) / root;
    const double bent = r == 0.0 ? 0.0 : std::copysign(std::sqrt(std::max(std::abs(r), 1e-6)), r);
    float* to = gated + s * width;
    std::memcpy(to, row_of(a.value, row), static_cast<size_t>(width) * sizeof(float));
    kernels_.scale(static_cast<float>(portable_sigmoid(bent)), width, to);
  }
  norm_streams(gated, *a.conv_norm, count, width, a.epsilon, normed);
}

void CpuBackend::ngram_branch(const Plan& plan, const NgramBranch& a) {
  check_running(plan);
  auto& cache = *static_cast<CpuCache*>(a.cache);
  const auto& shape = cache.state_shape<DilatedConvolutionShape>(a.entry);
  const int64_t channels = a.streams.width;
  check(a.value.width > 0 && channels % a.value.width == 0 && a.key.width == channels && shape.channels == channels,
        "an n-gram branch with rows of another width");
  for (const Vector* norm : {a.key_norm, a.query_norm, a.conv_norm})
    check(norm != nullptr && norm->size() == channels, "a norm weight of another width");
  check_slots(plan, cache);
  const Tensor gated = scratch(ngram_gated_, plan.rows(), channels);
  const Tensor normed = scratch(ngram_normed_, plan.rows(), channels);
  WindowRecord& record = cache.open_window(a.entry, view_.window_rows, channels, view_.forward);
  record.step = a;
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int worker) {
    float* keys = worker_floats(worker, 2 * channels);
    for (int64_t row = begin; row < end; ++row) {
      ngram_gate(a, row, keys, keys + channels, row_of(gated, row), row_of(normed, row));
      const int32_t kept = view_.window_index[static_cast<size_t>(row)];
      if (kept < 0) continue;
      std::memcpy(record.rows.data() + kept * channels, row_of(normed, row),
                  static_cast<size_t>(channels) * sizeof(float));
    }
  });
  const float* taps = static_cast<const CpuVector*>(a.convolution)->transposed(shape.kernel);
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int worker) {
    float* added = worker_floats(worker, channels);
    std::vector<const float*> history(static_cast<size_t>(span_of(shape)));
    std::vector<const float*> rows(static_cast<size_t>(shape.kernel));
    for (int64_t row = begin; row < end; ++row) {
      const auto& sequence = plan.sequences[static_cast<size_t>(plan.owner[static_cast<size_t>(row)])];
      find_history(plan, static_cast<int32_t>(row), normed, cache.state(a.entry, sequence.state_slot), span_of(shape),
                   history.data());
      for (int32_t j = 0; j < shape.kernel; ++j)
        rows[static_cast<size_t>(j)] = history[static_cast<size_t>(j * shape.dilation)];
      kernels_.convolve(rows.data(), taps, nullptr, shape.kernel, channels, added);
      kernels_.add(row_of(gated, row), channels, added);
      kernels_.add(added, channels, row_of(a.streams, row));
    }
  });
  keep_tails(plan, cache, a.entry, normed, span_of(shape), 0);
}

void CpuBackend::replay_ngram(CpuCache& cache, int32_t entry, int32_t slot, std::span<const float* const> records) {
  const auto& shape = cache.state_shape<DilatedConvolutionShape>(entry);
  update_tail(span_of(shape), shape.channels, records, cache.state(entry, slot));
}

}  // namespace tensorfold::backend::cpu
