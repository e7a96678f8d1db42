// Projections: input rows are normalised and padded into a workspace, then output tiles are shared out. A tile's slice
// is dequantised once into a panel in the first-level cache and multiplied with all rows.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

/// Adds one tile's sums [row][kTileOutputs] to, or stores them in, the output.
void write_tile(const float* sums, int64_t rows, int64_t count, bool add, Tensor output, int64_t first_output) {
  for (int64_t r = 0; r < rows; ++r) {
    float* to = row_of(output, r) + first_output;
    for (int64_t o = 0; o < count; ++o) {
      const float y = sums[r * kTileOutputs + o];
      to[o] = add ? to[o] + y : y;
    }
  }
}

}  // namespace

const float* CpuBackend::stage_inputs(const Plan& plan, const Project& a, int64_t rows, int64_t stride) {
  const float* norm = a.norm != nullptr ? static_cast<const CpuVector*>(a.norm)->values.data() : nullptr;
  float* staged = staged_.floats(rows * stride);
  threads_.run(rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t j = begin; j < end; ++j) {
      const float* from = row_of(a.input, plan_row(plan, a.rows, j));
      float* to = staged + j * stride;
      if (norm != nullptr) {
        kernels_.rms_norm(from, norm, a.input.width, a.epsilon, to);
      } else {
        std::memcpy(to, from, static_cast<size_t>(a.input.width) * sizeof(float));
      }
      std::fill(to + a.input.width, to + stride, 0.0F);
    }
  });
  return staged;
}

CpuBuffer* CpuBackend::projected_buffer(int64_t floats) {
  const auto bytes = static_cast<size_t>(floats) * sizeof(float);
  if (projected_ == nullptr || projected_->memory.size() < bytes) projected_ = std::make_unique<CpuBuffer>(bytes);
  return projected_.get();
}

void CpuBackend::multiply(const CpuProjection& weights, const float* x, int64_t stride, int64_t rows, bool add,
                          Tensor output) {
  threads_.run(weights.tiles, [&](int64_t begin, int64_t end, int worker) {
    float* panel = worker_floats(worker, kSliceInputs * kTileOutputs + rows * kTileOutputs);
    float* sums = panel + kSliceInputs * kTileOutputs;
    alignas(64) float block[kTileRows * kTileOutputs];
    size_t part = 0;
    int64_t part_begin = 0;  // global index of the part's first tile
    for (int64_t tile = begin; tile < end; ++tile) {
      while (tile >= part_begin + weights.parts[part].tiles) part_begin += weights.parts[part++].tiles;
      const PackedMatrix& matrix = weights.parts[part];
      const std::byte* slice_bytes = matrix.tile(tile - part_begin);
      for (int64_t slice = 0; slice < matrix.slices(); ++slice) {
        const int64_t inputs = matrix.slice_inputs(slice);
        kernels_.unpack_slice(matrix, slice_bytes, inputs, panel);
        for (int64_t r = 0; r < rows; r += kTileRows) {
          const int64_t count = std::min(kTileRows, rows - r);
          float* to = sums + r * kTileOutputs;
          kernels_.dot_tile(x + r * stride + slice * kSliceInputs, stride, count, panel, inputs,
                            slice == 0 ? to : block);
          if (slice > 0) {
            for (int64_t i = 0; i < count * kTileOutputs; ++i) to[i] += block[i];
          }
        }
        slice_bytes += matrix.pair_bytes(inputs) + matrix.code_bytes(inputs);
      }
      const int64_t first = (tile - part_begin) * kTileOutputs;
      write_tile(sums, rows, std::min(kTileOutputs, matrix.outputs - first), add, output,
                 weights.first_output[part] + first);
    }
  });
}

void CpuBackend::project(const Plan& plan, const Project& a) {
  const auto& weights = *static_cast<const CpuProjection*>(a.weights);
  check(a.input.width == weights.inputs(), "a product with rows of another width");
  check(a.norm == nullptr || a.norm->size() == a.input.width, "a norm weight of another width");
  const int64_t rows = row_count(plan, a.rows);
  if (rows == 0) return;
  // Rows start at different cache sets: a stride that is a power of two would make them share a few.
  const int64_t stride = weights.parts.front().padded_inputs + 16;
  const float* x = stage_inputs(plan, a, rows, stride);
  if (a.epilogue != Project::Epilogue::swiglu) {
    check(a.output.width == weights.outputs(), "a product into rows of another width");
    multiply(weights, x, stride, rows, a.epilogue == Project::Epilogue::add, a.output);
    return;
  }
  const int64_t half = weights.outputs() / 2;
  check(a.output.width == half && weights.outputs() % 2 == 0, "a gated product into rows of another width");
  const int64_t wide = (2 * half + 15) / 16 * 16;
  CpuBuffer* buffer = projected_buffer(rows * wide);
  multiply(weights, x, stride, rows, false, {buffer, 2 * half, wide, 0});
  const float* both = buffer->memory.floats();
  threads_.run(rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = both + r * wide;
      kernels_.swiglu(gate, gate + half, half, row_of(a.output, r));
    }
  });
}

}  // namespace tensorfold::backend::cpu
