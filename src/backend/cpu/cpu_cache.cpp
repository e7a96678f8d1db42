#include "backend/cpu/cpu_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tensorfold::backend::cpu {

CpuCache::CpuCache(CacheLayout layout, const CacheSize& size) : layout_(std::move(layout)), size_(size) {
  check(size.page_tokens >= 1 && size.pages >= 0 && size.state_slots >= 0, "a cache of an impossible size");
  for (const CacheEntry& entry : layout_.entries) {
    if (const auto* paged_entry = std::get_if<PagedEntry>(&entry)) {
      check(paged_entry->width > 0, "a paged entry without values");
      offsets_.push_back(page_floats_);
      widths_.push_back(paged_entry->width);
      page_floats_ += size.page_tokens * paged_entry->width;
    } else {
      const GatedDeltaShape& shape = std::get<GatedDeltaShape>(std::get<StateEntry>(entry).shape);
      check(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0 && shape.kernel >= 1,
            "a gated delta state of an impossible shape");
      offsets_.push_back(state_floats_);
      widths_.push_back(0);
      state_floats_ +=
          1LL * shape.value_heads * shape.value_dim * shape.key_dim + (shape.kernel - 1) * shape.channels();
    }
  }
  windows_.resize(layout_.entries.size());
  pages_ = AlignedBytes(static_cast<size_t>(page_bytes() * size.pages), "the key and value cache");
  slots_ = AlignedBytes(static_cast<size_t>(state_bytes() * size.state_slots), "the recurrent states");
}

const PagedEntry& CpuCache::paged(int32_t entry) const {
  check(entry >= 0 && static_cast<size_t>(entry) < layout_.entries.size(), "a cache entry that does not exist");
  const auto* result = std::get_if<PagedEntry>(&layout_.entries[static_cast<size_t>(entry)]);
  check(result != nullptr, "a cache entry of another kind: expected pages");
  return *result;
}

const GatedDeltaShape& CpuCache::gated_delta(int32_t entry) const {
  check(entry >= 0 && static_cast<size_t>(entry) < layout_.entries.size(), "a cache entry that does not exist");
  const auto* state_entry = std::get_if<StateEntry>(&layout_.entries[static_cast<size_t>(entry)]);
  const auto* shape = state_entry != nullptr ? std::get_if<GatedDeltaShape>(&state_entry->shape) : nullptr;
  check(shape != nullptr, "a cache entry of another kind: expected a gated delta state");
  return *shape;
}

float* CpuCache::page(int32_t page) const {
  check(page >= 0 && page < size_.pages, "a page outside the cache");
  return pages_.floats() + page * page_floats_;
}

float* CpuCache::slot(int32_t slot) const {
  check(slot >= 0 && slot < size_.state_slots, "a state slot outside the cache");
  return slots_.floats() + slot * state_floats_;
}

WindowRecord& CpuCache::open_window(int32_t entry, int64_t rows, int64_t width, uint64_t forward) {
  WindowRecord& record = window(entry);
  const auto wanted = static_cast<size_t>(rows * width);
  if (record.rows.size() < wanted) record.rows.resize(wanted);
  record.forward = forward;
  return record;
}

}  // namespace tensorfold::backend::cpu
