// Attention over cached latents with every head's key and value products moved to the row's side.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/selection.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

/// Rows whose absorbed queries are held at once; rows do not see each other.
constexpr int64_t kRowsAtOnce = 64;

int64_t padded(int64_t width) { return (width + kInputPadding - 1) / kInputPadding * kInputPadding; }

void check_products(const LatentAttention& a) {
  if (a.joined != nullptr) {
    check(a.joined->inputs() == a.latent.width && a.joined->outputs() == 1LL * a.heads * (a.key_dim + a.value_dim) &&
              a.key_dim % kTileOutputs == 0 && a.value_dim % kTileOutputs == 0,
          "latent products of another size");
    check(static_cast<const CpuProjection*>(a.joined)->parts.size() == 1, "latent products in several matrices");
    return;
  }
  check(a.absorb != nullptr && a.expand != nullptr, "latent attention without its products");
  const auto& absorb = *static_cast<const CpuProjection*>(a.absorb);
  const auto& expand = *static_cast<const CpuProjection*>(a.expand);
  const auto heads = static_cast<size_t>(a.heads);
  check(absorb.parts.size() == heads && absorb.inputs() == a.key_dim && absorb.outputs() == a.heads * a.latent.width,
        "latent products of another size");
  check(expand.parts.size() == heads && expand.inputs() == a.latent.width &&
            expand.outputs() == 1LL * a.heads * a.value_dim,
        "latent products of another size");
}

}  // namespace

void CpuBackend::stage_head_rows(const float* from, int64_t stride, int64_t rows, int64_t heads, int64_t dim,
                                 float* staged) {
  const int64_t wide = padded(dim);
  threads_.run(heads, [&](int64_t begin, int64_t end, int worker) {
    float* row = worker_floats(worker, wide);
    std::fill(row + dim, row + wide, 0.0F);
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(row, from + r * stride + head * dim, static_cast<size_t>(dim) * sizeof(float));
        place_row(row, wide, r, rows, staged + head * rows * wide);
      }
    }
  });
}

void CpuBackend::absorb_queries(const LatentAttention& a, const float* from, int64_t stride, int64_t rows, float* to) {
  const int64_t latent = a.latent.width;
  if (a.joined == nullptr) {
    const auto& weights = *static_cast<const CpuProjection*>(a.absorb);
    float* staged = staged_.floats(a.heads * rows * padded(a.key_dim));
    stage_head_rows(from, stride, rows, a.heads, a.key_dim, staged);
    threads_.run(a.heads, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t head = begin; head < end; ++head) {
        const PackedMatrix& matrix = weights.parts[static_cast<size_t>(head)];
        multiply_tiles(matrix, 0, matrix.tiles, staged + head * rows * matrix.padded_inputs, rows, false,
                       to + head * latent, a.heads * latent, worker);
      }
    });
    return;
  }
  // The transposed product: for every tile of four of the head's key rows, each latent column takes four fma.
  const PackedMatrix& matrix = static_cast<const CpuProjection*>(a.joined)->parts.front();
  threads_.run(a.heads, [&](int64_t begin, int64_t end, int worker) {
    const int64_t wide = matrix.padded_inputs;
    float* panel = worker_floats(worker, kSliceInputs * kTileOutputs + rows * wide);
    float* sums = panel + kSliceInputs * kTileOutputs;
    for (int64_t head = begin; head < end; ++head) {
      std::fill(sums, sums + rows * wide, 0.0F);
      const int64_t first_tile = head * (a.key_dim + a.value_dim) / kTileOutputs;
      for (int64_t tile = 0; tile < a.key_dim / kTileOutputs; ++tile) {
        const std::byte* slice_bytes = matrix.tile(first_tile + tile);
        for (int64_t slice = 0; slice < matrix.slices(); ++slice) {
          const int64_t inputs = matrix.slice_inputs(slice);
          kernels_.unpack_slice(matrix, slice_bytes, inputs, panel);
          for (int64_t r = 0; r < rows; ++r)
            kernels_.add_transposed(panel, inputs, from + r * stride + head * a.key_dim + tile * kTileOutputs,
                                    sums + r * wide + slice * kSliceInputs);
          slice_bytes += matrix.pair_bytes(inputs) + matrix.code_bytes(inputs);
        }
      }
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(to + (r * a.heads + head) * latent, sums + r * wide, static_cast<size_t>(latent) * sizeof(float));
    }
  });
}

void CpuBackend::expand_latents(const LatentAttention& a, const float* from, int64_t rows, float* to, int64_t stride) {
  const int64_t latent = a.latent.width;
  float* staged = staged_.floats(a.heads * rows * padded(latent));
  stage_head_rows(from, a.heads * latent, rows, a.heads, latent, staged);
  const auto& weights = *static_cast<const CpuProjection*>(a.joined != nullptr ? a.joined : a.expand);
  threads_.run(a.heads, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t head = begin; head < end; ++head) {
      const PackedMatrix& matrix = weights.parts[a.joined != nullptr ? 0 : static_cast<size_t>(head)];
      const int64_t first_row = a.joined != nullptr ? head * (a.key_dim + a.value_dim) + a.key_dim : 0;
      multiply_tiles(matrix, first_row / kTileOutputs, (a.value_dim + kTileOutputs - 1) / kTileOutputs,
                     staged + head * rows * matrix.padded_inputs, rows, false, to + head * a.value_dim, stride, worker);
    }
  });
}

void CpuBackend::latent_attention(const Plan& plan, const LatentAttention& a) {
  check_running(plan);
  auto& cache = *static_cast<CpuCache*>(a.cache);
  const int64_t latent = a.latent.width;
  check(cache.paged(a.entry).width == latent, "a latent entry of another width");
  check_pages(plan, cache);
  cache.open_window(a.entry, view_.window_rows, latent, view_.forward);
  for (int32_t row = 0; row < plan.rows(); ++row)
    std::memcpy(own_row(plan, cache, a.entry, row), row_of(a.latent, row), static_cast<size_t>(latent) * sizeof(float));
  if (!a.query) return;
  check(a.query.width == 1LL * a.heads * a.key_dim && a.output.width == 1LL * a.heads * a.value_dim,
        "latent attention with rows of another width");
  check_products(a);
  AttendRows rows;
  rows.cache = &cache;
  rows.entry = a.entry;
  // All heads read the same rows; groups of them are there to share the work.
  rows.heads = a.heads % 8 == 0 ? 8 : a.heads % 4 == 0 ? 4 : 1;
  rows.groups = a.heads / rows.heads;
  rows.key_dim = latent;
  rows.value_dim = latent;
  rows.scale = a.scale;
  rows.selection = selection_of(a.selection);
  for (int64_t first = 0; first < plan.rows(); first += kRowsAtOnce) {
    const int64_t count = std::min<int64_t>(kRowsAtOnce, plan.rows() - first);
    const int64_t floats = count * a.heads * latent;
    float* absorbed = queries_.floats(2 * floats);
    absorb_queries(a, row_of(a.query, first), a.query.stride, count, absorbed);
    rows.queries = absorbed;
    rows.first_row = first;
    rows.row_count = count;
    rows.output = absorbed + floats;
    rows.output_stride = a.heads * latent;
    attend(plan, rows);
    expand_latents(a, rows.output, count, row_of(a.output, first), a.output.stride);
  }
}

}  // namespace tensorfold::backend::cpu
