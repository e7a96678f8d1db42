// Residuals of several streams: their mean, and the gated low-rank hyper-connection, row by row. Streams are added in
// their order.
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/scalar_math.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

/// How many streams of `width` values a row has.
int64_t streams_of(const Tensor& tensor, int64_t width) {
  check(width > 0 && tensor.width > 0 && tensor.width % width == 0, "streams of another width");
  return tensor.width / width;
}

void copy_row(const float* from, int64_t width, float* to) {
  std::memcpy(to, from, static_cast<size_t>(width) * sizeof(float));
}

}  // namespace

Tensor CpuBackend::scratch(std::unique_ptr<CpuBuffer>& slot, int64_t rows, int64_t width) {
  const int64_t stride = (width + 15) / 16 * 16;
  const auto bytes = static_cast<size_t>(rows * stride) * sizeof(float);
  if (slot == nullptr || slot->memory.size() < bytes) slot = std::make_unique<CpuBuffer>(bytes);
  return {slot.get(), width, stride, 0};
}

void CpuBackend::norm_streams(const float* from, const Vector& norm, int64_t count, int64_t width, float epsilon,
                              float* to) const {
  const float* weight = static_cast<const CpuVector&>(norm).values.data();
  for (int64_t s = 0; s < count; ++s)
    kernels_.rms_norm(from + s * width, weight + s * width, width, epsilon, to + s * width);
}

void CpuBackend::mean_streams(const Plan& plan, const MeanStreams& a) {
  const int64_t width = a.output.width;
  const int64_t count = streams_of(a.input, width);
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = row_of(a.input, row);
      float* to = row_of(a.output, row);
      copy_row(from, width, to);
      for (int64_t s = 1; s < count; ++s) kernels_.add(from + s * width, width, to);
      kernels_.scale(1.0F / static_cast<float>(count), width, to);
    }
  });
}

void CpuBackend::hyper_connection_read(const Plan& plan, const HyperConnectionRead& a) {
  const int64_t width = a.output.width;
  const int64_t count = streams_of(a.streams, width);
  const int64_t rank = a.up->inputs();
  check(a.norm != nullptr && a.norm->size() == a.streams.width, "a norm weight of another width");
  check(a.up->outputs() == a.streams.width && a.down->inputs() == a.streams.width &&
            a.down->outputs() == rank + (a.gates ? count : 0) && (!a.gates || a.gates.width == count),
        "hyper-connection matrices of another shape");
  const float share = 1.0F / static_cast<float>(count);
  const Tensor normed = scratch(normed_streams_, plan.rows(), a.streams.width);
  const Tensor low = scratch(low_rank_, plan.rows(), a.down->outputs());
  const Tensor mix = scratch(stream_mix_, plan.rows(), a.streams.width);
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      norm_streams(row_of(a.streams, row), *a.norm, count, width, a.epsilon, row_of(normed, row));
  });
  project(plan, {.weights = a.down, .input = normed, .output = low});
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* values = row_of(low, row);
      kernels_.scale(share, a.down->outputs(), values);
      kernels_.multiply_sigmoid(values, rank, values);
      for (int64_t s = 0; a.gates && s < count; ++s) {
        const double gate = 2.0 * portable_sigmoid(static_cast<double>(values[rank + s]));
        row_of(a.gates, row)[s] = static_cast<float>(gate);
      }
    }
  });
  project(plan, {.weights = a.up, .input = low.columns(0, rank), .output = mix});
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* values = row_of(normed, row);
      float* to = row_of(a.output, row);
      kernels_.multiply_sigmoid(row_of(mix, row), a.streams.width, values);
      copy_row(values, width, to);
      for (int64_t s = 1; s < count; ++s) kernels_.add(values + s * width, width, to);
      kernels_.scale(share, width, to);
    }
  });
}

void CpuBackend::hyper_connection_write(const Plan& plan, const HyperConnectionWrite& a) {
  const int64_t width = a.branch.width;
  const int64_t count = streams_of(a.streams, width);
  check(a.gates.width == count, "a gate a stream");
  threads_.run(plan.rows(), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t s = 0; s < count; ++s)
        kernels_.add_scaled(row_of(a.gates, row)[s], row_of(a.branch, row), width, row_of(a.streams, row) + s * width);
    }
  });
}

}  // namespace tensorfold::backend::cpu
