#include "backend/cpu/cpu_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

bool is_possible(const GatedDeltaShape& shape) {
  return shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0 && shape.kernel >= 1;
}
bool is_possible(const Mamba2Shape& shape) {
  return shape.groups > 0 && shape.heads % shape.groups == 0 && shape.state > 0 && shape.kernel >= 1;
}
bool is_possible(const DilatedConvolutionShape& shape) {
  return shape.channels > 0 && shape.kernel >= 1 && shape.dilation >= 1;
}

bool is_possible(const KimiDeltaShape& shape) { return shape.heads > 0 && shape.dim > 0 && shape.kernel >= 1; }

}  // namespace

CpuCache::CpuCache(CacheLayout layout, const CacheSize& size) : layout_(std::move(layout)), size_(size) {
  check(size.page_tokens >= 1 && size.pages >= 0 && size.state_slots >= 0, "a cache of an impossible size");
  for (const CacheEntry& entry : layout_.entries) {
    if (const auto* paged_entry = std::get_if<PagedEntry>(&entry)) {
      check(paged_entry->width > 0, "a paged entry without values");
      offsets_.push_back(page_floats_);
      widths_.push_back(paged_entry->width);
      page_floats_ += size.page_tokens * paged_entry->width;
    } else {
      const auto& shape = std::get<StateEntry>(entry).shape;
      check(std::visit([](const auto& each) { return is_possible(each); }, shape), "a state of an impossible shape");
      offsets_.push_back(state_floats_);
      widths_.push_back(0);
      state_floats_ += std::visit([](const auto& each) { return each.state_values(); }, shape);
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

const StateEntry& CpuCache::state_entry(int32_t entry) const {
  check(entry >= 0 && static_cast<size_t>(entry) < layout_.entries.size(), "a cache entry that does not exist");
  const auto* result = std::get_if<StateEntry>(&layout_.entries[static_cast<size_t>(entry)]);
  check(result != nullptr, "a cache entry of another kind: expected a state");
  return *result;
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
  record.width = width;
  return record;
}

}  // namespace tensorfold::backend::cpu
