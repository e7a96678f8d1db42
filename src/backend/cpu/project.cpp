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
/// Up to here one tile's panel at a time is quicker: it never leaves the first-level cache.
constexpr int64_t kPanelRows = 4 * kTileRows;
/// Rows that one pass over the weights serves: their sums stay in the second-level cache.
constexpr int64_t kPassRows = 128 * kTileRows;

/// Adds the sums [tile][row][kTileOutputs] of neighbouring tiles to the output rows, or stores them there.
void write_tiles(const float* sums, int64_t first_row, int64_t rows, int64_t outputs, bool add, Tensor output,
                 int64_t first_output) {
  for (int64_t r = 0; r < rows; ++r) {
    float* to = row_of(output, first_row + r) + first_output;
    for (int64_t first = 0; first < outputs; first += kTileOutputs) {
      const float* own = sums + first * rows + r * kTileOutputs;
      const int64_t count = std::min(kTileOutputs, outputs - first);
      for (int64_t o = 0; o < count; ++o) to[first + o] = add ? to[first + o] + own[o] : own[o];
    }
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
      const int64_t block = j / kTileRows * kTileRows;
      const int64_t in_block = std::min(kTileRows, rows - block);
      float* to = staged + block * padded + (j - block) * 16;
      for (int64_t k = 0; k < padded; k += 16, to += in_block * 16) std::memcpy(to, row + k, 16 * sizeof(float));
    }
  });
  return staged;
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
          kernels_.dot_tile(from, count, tile_panel, half, slice == 0 ? own : block);
          float* to = slice == 0 ? own : block;
          alignas(64) float rest[kTileRows * kTileOutputs];
          kernels_.dot_tile(from + half * count, count, tile_panel + half * kTileOutputs, inputs - half, rest);
          for (int64_t i = 0; i < count * kTileOutputs; ++i) to[i] += rest[i];
        } else {
          kernels_.dot_tile(from, count, tile_panel, inputs, slice == 0 ? own : block);
        }
        if (slice == 0) continue;
        for (int64_t i = 0; i < count * kTileOutputs; ++i) own[i] += block[i];
      }
    }
    slice_offset += matrix.pair_bytes(inputs) + matrix.code_bytes(inputs);
  }
}

void CpuBackend::multiply(const CpuProjection& weights, const float* x, int64_t rows, bool add, Tensor output) {
  const bool few = rows <= (break_order_ ? 1 : kFewRows);
  const int64_t pass_rows = std::min(rows, kPassRows);
  const int64_t group_tiles = rows <= kPanelRows ? 1 : kPanelTiles;
  threads_.run(weights.tiles, [&](int64_t begin, int64_t end, int worker) {
    const int64_t panel_floats = kSliceInputs * kTileOutputs * group_tiles;
    float* panel = worker_floats(worker, panel_floats + pass_rows * kTileOutputs * group_tiles);
    float* sums = panel + panel_floats;
    for (int64_t first_row = 0; first_row < rows; first_row += kPassRows) {
      const int64_t count = std::min(kPassRows, rows - first_row);
      const float* from = x + first_row * weights.parts.front().padded_inputs;
      size_t part = 0;
      int64_t part_begin = 0;  // global index of the part's first tile
      for (int64_t tile = begin; tile < end;) {
        while (tile >= part_begin + weights.parts[part].tiles) part_begin += weights.parts[part++].tiles;
        const PackedMatrix& matrix = weights.parts[part];
        const int64_t own = tile - part_begin;
        const int64_t tiles = std::min({group_tiles, end - tile, matrix.tiles - own});
        if (few) {
          multiply_few(matrix, own, from, count, panel, sums);
        } else {
          multiply_group(matrix, own, tiles, from, count, panel, sums);
        }
        const int64_t first = own * kTileOutputs;
        write_tiles(sums, first_row, count, std::min(tiles * kTileOutputs, matrix.outputs - first), add, output,
                    weights.first_output[part] + first);
        tile += tiles;
      }
    }
  });
}

void CpuBackend::project(const Plan& plan, const Project& a) {
  const auto& weights = *static_cast<const CpuProjection*>(a.weights);
  check(a.input.width == weights.inputs(), "a product with rows of another width");
  check(a.norm == nullptr || a.norm->size() == a.input.width, "a norm weight of another width");
  const int64_t rows = row_count(plan, a.rows);
  if (rows == 0) return;
  const float* x = stage_inputs(plan, a, rows, weights.parts.front().padded_inputs);
  if (a.epilogue != Project::Epilogue::swiglu) {
    check(a.output.width == weights.outputs(), "a product into rows of another width");
    multiply(weights, x, rows, a.epilogue == Project::Epilogue::add, a.output);
    return;
  }
  const int64_t half = weights.outputs() / 2;
  check(a.output.width == half && weights.outputs() % 2 == 0, "a gated product into rows of another width");
  const int64_t wide = (2 * half + 15) / 16 * 16;
  CpuBuffer* buffer = projected_buffer(rows * wide);
  multiply(weights, x, rows, false, {buffer, 2 * half, wide, 0});
  const float* both = buffer->memory.floats();
  threads_.run(rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = both + r * wide;
      kernels_.swiglu(gate, gate + half, half, row_of(a.output, r));
    }
  });
}

}  // namespace tensorfold::backend::cpu
