// Residual streams mixed by a doubly stochastic matrix a row.
#include <algorithm>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/scalar_math.h"
#include "backend/keyed_sampling.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

/// Rows by softmax plus `epsilon`; then columns, rows, columns ... divided by their sums, ending in columns.
void make_doubly_stochastic(std::vector<double>& mix, size_t n, double epsilon, int32_t rounds) {
  for (size_t i = 0; i < n; ++i) {
    double* row = &mix[i * n];
    const double most = *std::max_element(row, row + n);
    double sum = 0.0;
    for (size_t j = 0; j < n; ++j) sum += row[j] = keyed::exponential(row[j] - most);
    for (size_t j = 0; j < n; ++j) row[j] = row[j] / sum + epsilon;
  }
  // A line: n values `step` apart.
  const auto divide = [&](size_t first, size_t step) {
    double sum = epsilon;
    for (size_t j = 0; j < n; ++j) sum += mix[first + j * step];
    for (size_t j = 0; j < n; ++j) mix[first + j * step] /= sum;
  };
  for (int32_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; round > 0 && i < n; ++i) divide(i * n, 1);
    for (size_t j = 0; j < n; ++j) divide(j, n);
  }
}

void check_streams(Tensor streams, Tensor weights, Tensor one) {
  const int64_t count = streams.width / one.width;
  check(count >= 1 && count <= kMostStreams && streams.width == count * one.width, "streams of another width");
  check(weights.width == count * (count + 2), "stream weights of another width");
}

}  // namespace

void CpuBackend::stream_weights(const Plan& plan, const StreamWeights& a) {
  const auto n = static_cast<size_t>(a.streams);
  const auto width = static_cast<int64_t>(n * (n + 2));
  check(a.raw.width == width && a.weights.width == width && a.base->size() == width && a.scale->size() == 3,
        "stream weights of another width");
  const auto& base = static_cast<const CpuVector*>(a.base)->values;
  const auto& scale = static_cast<const CpuVector*>(a.scale)->values;
  const auto epsilon = static_cast<double>(a.epsilon);
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    std::vector<double> mix(n * n);
    for (int64_t row = begin; row < end; ++row) {
      const float* raw = row_of(a.raw, row);
      float* to = row_of(a.weights, row);
      const auto value = [&](size_t i, size_t kind) {
        return static_cast<double>(raw[i]) * static_cast<double>(scale[kind]) + static_cast<double>(base[i]);
      };
      for (size_t i = 0; i < n * n; ++i) mix[i] = value(2 * n + i, 2);
      for (size_t s = 0; s < n; ++s) to[s] = static_cast<float>(portable_sigmoid(value(s, 0)) + epsilon);
      for (size_t s = n; s < 2 * n; ++s) to[s] = static_cast<float>(2.0 * portable_sigmoid(value(s, 1)));
      make_doubly_stochastic(mix, n, epsilon, a.rounds);
      for (size_t i = 0; i < n * n; ++i) to[2 * n + i] = static_cast<float>(mix[i]);
    }
  });
}

void CpuBackend::stream_read(const Plan& plan, const StreamRead& a) {
  check_streams(a.streams, a.weights, a.output);
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      kernels_.read_streams(row_of(a.streams, row), row_of(a.weights, row), a.streams.width / a.output.width,
                            a.output.width, row_of(a.output, row));
  });
}

void CpuBackend::stream_write(const Plan& plan, const StreamWrite& a) {
  check_streams(a.streams, a.weights, a.branch);
  const int64_t count = a.streams.width / a.branch.width;
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* weights = row_of(a.weights, row);
      kernels_.write_streams(row_of(a.branch, row), weights + count, weights + 2 * count, count, a.branch.width,
                             row_of(a.streams, row));
    }
  });
}

}  // namespace tensorfold::backend::cpu
