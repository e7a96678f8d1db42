// Pages, state slots and window records of one cache layout in host memory, all fp32.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/packed_matrix.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {

/// What the rows of an uncommitted window left in one entry, by window row.
struct WindowRecord {
  /// Paged entry: [window row][width]. State entry: the raw inputs of the step, [window row][record width].
  std::vector<float> rows;
  /// Which forward wrote it; 0: none yet.
  uint64_t forward = 0;
  int64_t width = 0;
  /// State entries: the weights to replay with. The tensors in it are not used.
  std::variant<std::monostate, GatedDelta, Mamba2, NgramBranch, KimiDelta> step;
  [[nodiscard]] const float* row(int64_t index) const { return rows.data() + index * width; }
};

class CpuCache final : public Cache {
 public:
  /// Throws Error(capacity) when memory ends, Error(internal) for a layout or size that makes no sense.
  CpuCache(CacheLayout layout, const CacheSize& size);

  [[nodiscard]] const CacheLayout& layout() const override { return layout_; }
  [[nodiscard]] const CacheSize& size() const override { return size_; }
  [[nodiscard]] int64_t page_bytes() const override { return page_floats_ * 4; }
  [[nodiscard]] int64_t state_bytes() const override { return state_floats_ * 4; }

  [[nodiscard]] const PagedEntry& paged(int32_t entry) const;
  /// The shape of a state entry of this kind.
  template <typename Shape>
  [[nodiscard]] const Shape& state_shape(int32_t entry) const {
    const auto* shape = std::get_if<Shape>(&state_entry(entry).shape);
    check(shape != nullptr, "a cache entry of another recurrence");
    return *shape;
  }

  /// All entries of one page, and all state entries of one slot.
  [[nodiscard]] float* page(int32_t page) const;
  [[nodiscard]] float* slot(int32_t slot) const;
  /// The row of a paged entry at place `token` of a page.
  [[nodiscard]] float* page_row(int32_t entry, int32_t page, int64_t token) const {
    const auto e = static_cast<size_t>(entry);
    return this->page(page) + offsets_[e] + token * widths_[e];
  }
  /// The state of one entry: S, then the raw convolution rows.
  [[nodiscard]] float* state(int32_t entry, int32_t slot) const {
    return this->slot(slot) + offsets_[static_cast<size_t>(entry)];
  }
  [[nodiscard]] WindowRecord& window(int32_t entry) { return windows_[static_cast<size_t>(entry)]; }
  /// Room for `rows` window rows of `width` values, marked as written by `forward`.
  WindowRecord& open_window(int32_t entry, int64_t rows, int64_t width, uint64_t forward);

 private:
  [[nodiscard]] const StateEntry& state_entry(int32_t entry) const;

  CacheLayout layout_;
  CacheSize size_;
  std::vector<int64_t> offsets_;  ///< of an entry within a page or a slot, in floats
  std::vector<int64_t> widths_;   ///< of a paged entry's row
  int64_t page_floats_ = 0;
  int64_t state_floats_ = 0;
  AlignedBytes pages_;
  AlignedBytes slots_;
  std::vector<WindowRecord> windows_;
};

}  // namespace tensorfold::backend::cpu
