// Projections: input rows are normalised, padded and interleaved in blocks of kTileRows in a workspace, then output
// tiles are shared out. Few rows read the weights once, straight into their sums. Many rows have a group of tiles'
// slices dequantised into a panel in the second-level cache; a block of rows stays in the first while the panel passes.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

constexpr int64_t kPanelTiles = 16;
/// Up to here weights go straight into sums, for a block of rows at a time; beyond, a panel pays.
constexpr int64_t kFewBlocks = 3;
/// Rows that one pass over the weights serves: their sums stay in the second-level cache.
constexpr int64_t kPassRows = 128 * kTileRows;

/// Whether the rows of a product go straight from the codes to the sums.
bool is_few(int64_t rows, bool break_order) { return rows <= (break_order ? 1 : kFewBlocks * kFewRows); }

/// Adds the sums [tile][row][kTileOutputs] of neighbouring tiles to rows `stride` apart, or stores them there.
void write_tiles(const float* sums, int64_t rows, int64_t outputs, bool add, float* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t first = 0; first < outputs; first += kTileOutputs) {
      const float* own = sums + first * rows + r * kTileOutputs;
      const int64_t count = std::min(kTileOutputs, outputs - first);
      float* place = to + r * stride + first;
      for (int64_t o = 0; o < count; ++o) place[o] = add ? place[o] + own[o] : own[o];
    }
  }
}

Activation activation_of(Project::Epilogue epilogue) {
  switch (epilogue) {
    case Project::Epilogue::geglu:
      return Activation::geglu;
    case Project::Epilogue::relu_squared:
      return Activation::relu_squared;
    default:
      return Activation::swiglu;
  }
}

}  // namespace

const float* CpuBackend::stage_inputs(const Plan& plan, const Project& a, int64_t rows, int64_t padded) {
  const float* norm = a.norm != nullptr ? static_cast<const CpuVector*>(a.norm)->values.data() : nullptr;
  float* staged = staged_.floats(rows * padded);
  threads_.run(rows, [&](int64_t begin, int64_t end, int worker) {
    float* row = worker_floats(worker, padded);
    std::fill(row + a.input.width, row + padded, 0.0F);
    for (int64_t j = begin; j < end; ++j) {
      const float* from = row_of(a.input, plan_row(plan, a.rows, j));
      if (norm != nullptr) {
        kernels_.rms_norm(from, norm, a.input.width, a.epsilon, row);
      } else {
        std::memcpy(row, from, static_cast<size_t>(a.input.width) * sizeof(float));
      }
      place_row(row, padded, j, rows, staged);
    }
  });
  return staged;
}

void CpuBackend::place_row(const float* row, int64_t padded, int64_t j, int64_t rows, float* staged) const {
  const int64_t width = is_few(rows, break_order_) ? kFewRows : kTileRows;
  const int64_t block = j / width * width;
  const int64_t in_block = std::min(width, rows - block);
  float* to = staged + block * padded + (j - block) * 16;
  for (int64_t k = 0; k < padded; k += 16, to += in_block * 16) std::memcpy(to, row + k, 16 * sizeof(float));
}

CpuBuffer* CpuBackend::projected_buffer(int64_t floats) {
  const auto bytes = static_cast<size_t>(floats) * sizeof(float);
  if (projected_ == nullptr || projected_->memory.size() < bytes) projected_ = std::make_unique<CpuBuffer>(bytes);
  return projected_.get();
}

void CpuBackend::multiply_few(const PackedMatrix& matrix, int64_t tile, const float* x, int64_t rows, float* panel,
                              float* sums) const {
  alignas(64) float block[kFewRows * kTileOutputs];
  const std::byte* slice_bytes = matrix.tile(tile);
  for (int64_t slice = 0; slice < matrix.slices(); ++slice) {
    const int64_t inputs = matrix.slice_inputs(slice);
    float* to = slice == 0 ? sums : block;
    kernels_.dot_slice(matrix, slice_bytes, inputs, x + slice * kSliceInputs * rows, rows, panel, to);
    if (slice > 0) {
      for (int64_t i = 0; i < rows * kTileOutputs; ++i) sums[i] += block[i];
    }
    slice_bytes += matrix.pair_bytes(inputs) + matrix.code_bytes(inputs);
  }
}

void CpuBackend::multiply_group(const PackedMatrix& matrix, int64_t first_tile, int64_t tiles, const float* x,
                                int64_t rows, float* panel, float* sums) const {
  alignas(64) float block[kTileRows * kTileOutputs];
  int64_t slice_offset = 0;
  for (int64_t slice = 0; slice < matrix.slices(); ++slice) {
    const int64_t inputs = matrix.slice_inputs(slice);
    const int64_t panel_floats = inputs * kTileOutputs;
    for (int64_t t = 0; t < tiles; ++t)
      kernels_.unpack_slice(matrix, matrix.tile(first_tile + t) + slice_offset, inputs, panel + t * panel_floats);
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const int64_t count = std::min(kTileRows, rows - r);
      const float* from = x + r * matrix.padded_inputs + slice * kSliceInputs * count;
      for (int64_t t = 0; t < tiles; ++t) {
        float* own = sums + (t * rows + r) * kTileOutputs;
        const float* tile_panel = panel + t * panel_floats;
        if (break_order_) {
          // Wrong on purpose: the slice in two halves.
          const int64_t half = inputs / 32 * 16;
          kernels_.dot_tile(from, count, count, tile_panel, half, slice == 0 ? own : block);
          float* to = slice == 0 ? own : block;
          alignas(64) float rest[kTileRows * kTileOutputs];
          kernels_.dot_tile(from + half * count, count, count, tile_panel + half * kTileOutputs, inputs - half, rest);
          for (int64_t i = 0; i < count * kTileOutputs; ++i) to[i] += rest[i];
        } else {
          kernels_.dot_tile(from, count, count, tile_panel, inputs, slice == 0 ? own : block);
        }
        if (slice == 0) continue;
        for (int64_t i = 0; i < count * kTileOutputs; ++i) own[i] += block[i];
      }
    }
    slice_offset += matrix.pair_bytes(inputs) + matrix.code_bytes(inputs);
  }
}

void CpuBackend::multiply_tiles(const PackedMatrix& matrix, int64_t first_tile, int64_t tiles, const float* x,
                                int64_t rows, bool add, float* to, int64_t stride, int worker) {
  const bool few = is_few(rows, break_order_);
  const int64_t pass_rows = std::min(rows, kPassRows);
  const int64_t group_tiles = few ? 1 : kPanelTiles;
  const int64_t panel_floats = kSliceInputs * kTileOutputs * group_tiles;
  float* panel = worker_floats(worker, panel_floats + pass_rows * kTileOutputs * group_tiles);
  float* sums = panel + panel_floats;
  for (int64_t first_row = 0; first_row < rows; first_row += kPassRows) {
    const int64_t count = std::min(kPassRows, rows - first_row);
    const float* from = x + first_row * matrix.padded_inputs;
    for (int64_t tile = first_tile; tile < first_tile + tiles; tile += group_tiles) {
      const int64_t group = std::min(group_tiles, first_tile + tiles - tile);
      if (few) {
        for (int64_t r = 0; r < count; r += kFewRows) {
          multiply_few(matrix, tile, from + r * matrix.padded_inputs, std::min(kFewRows, count - r), panel,
                       sums + r * kTileOutputs);
        }
      } else {
        multiply_group(matrix, tile, group, from, count, panel, sums);
      }
      const int64_t first = (tile - first_tile) * kTileOutputs;
      write_tiles(sums, count, std::min(group * kTileOutputs, matrix.outputs - tile * kTileOutputs), add,
                  to + first_row * stride + first, stride);
    }
  }
}

void CpuBackend::multiply(const CpuProjection& weights, const float* x, int64_t rows, bool add, Tensor output) {
  threads_.run(weights.tiles, [&](int64_t begin, int64_t end, int worker) {
    size_t part = 0;
    int64_t part_begin = 0;  // global index of the part's first tile
    for (int64_t tile = begin; tile < end;) {
      while (tile >= part_begin + weights.parts[part].tiles) part_begin += weights.parts[part++].tiles;
      const int64_t own = tile - part_begin;
      const int64_t tiles = std::min(end - tile, weights.parts[part].tiles - own);
      float* to = row_of(output, 0) + weights.first_output[part] + own * kTileOutputs;
      multiply_tiles(weights.parts[part], own, tiles, x, rows, add, to, output.stride, worker);
      tile += tiles;
    }
  });
}

void CpuBackend::activate(Activation activation, float limit, const float* inner, int64_t width, float* to) const {
  const float* up = inner + width;
  switch (activation) {
    case Activation::swiglu:
      if (limit > 0.0F) return kernels_.limited_swiglu(inner, up, limit, width, to);
      return kernels_.swiglu(inner, up, width, to);
    case Activation::geglu:
      return kernels_.geglu(inner, up, width, to);
    case Activation::relu_squared:
      return kernels_.relu_squared(inner, width, to);
  }
}

void CpuBackend::project(const Plan& plan, const Project& a) {
  const auto& weights = *static_cast<const CpuProjection*>(a.weights);
  check(a.input.width == weights.inputs(), "a product with rows of another width");
  check(a.norm == nullptr || a.norm->size() == a.input.width, "a norm weight of another width");
  const int64_t rows = row_count(plan, a.rows);
  if (rows == 0) return;
  const float* x = stage_inputs(plan, a, rows, weights.parts.front().padded_inputs);
  if (a.epilogue == Project::Epilogue::store || a.epilogue == Project::Epilogue::add) {
    check(a.output.width == weights.outputs(), "a product into rows of another width");
    multiply(weights, x, rows, a.epilogue == Project::Epilogue::add, a.output);
    return;
  }
  const Activation activation = activation_of(a.epilogue);
  const int64_t width = weights.outputs();
  check(activation == Activation::relu_squared ? a.output.width == width : 2 * a.output.width == width,
        "an activation into rows of another width");
  const int64_t wide = (width + 15) / 16 * 16;
  CpuBuffer* buffer = projected_buffer(rows * wide);
  multiply(weights, x, rows, false, {buffer, width, wide, 0});
  const float* inner = buffer->memory.floats();
  threads_.run(rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      activate(activation, a.limit, inner + r * wide, a.output.width, row_of(a.output, r));
  });
}

}  // namespace tensorfold::backend::cpu
