#include "backend/cuda/cuda_cache.h"

#include <algorithm>

#include "backend/cuda/key_place.cuh"
#include "base/error.h"

namespace tensorfold::backend::cuda {

CudaCache::CudaCache(const CacheLayout& layout, const CacheSize& size)
    : layout_(layout), size_(size), records_(std::clamp(size.window_rows, 1, kMostWindowRows)) {
  count_memory_change();
  paged_.resize(layout.entries.size());
  states_.resize(layout.entries.size());
  for (size_t i = 0; i < layout.entries.size(); ++i) {
    if (const auto* entry = std::get_if<PagedEntry>(&layout.entries[i])) {
      if (entry->width % kGroupColumns != 0)
        fail(ErrorKind::unsupported, "{}: the CUDA backend pages entries of multiples of 64 values only", entry->name);
      auto memory = std::make_unique<PagedMemory>();
      memory->width = entry->width;
      memory->pages = DeviceArray<uint16_t>(static_cast<size_t>(int64_t{size.pages} * size.page_tokens * entry->width));
      memory->window = DeviceArray<uint16_t>(static_cast<size_t>(int64_t{records_} * entry->width));
      paged_[i] = std::move(memory);
    } else {
      auto memory = std::make_unique<StateMemory>();
      memory->shape = std::get<GatedDeltaShape>(std::get<StateEntry>(layout.entries[i]).shape);
      memory->states = DeviceArray<float>(static_cast<size_t>(size.state_slots * memory->state_values()));
      memory->tails = DeviceArray<uint16_t>(static_cast<size_t>(size.state_slots * memory->tail_values()));
      memory->steps = DeviceArray<float>(static_cast<size_t>(records_ * memory->step_values()));
      memory->raw = DeviceArray<uint16_t>(static_cast<size_t>(records_ * memory->shape.channels()));
      states_[i] = std::move(memory);
    }
  }
}

int64_t CudaCache::page_bytes() const {
  int64_t bytes = 0;
  for (const auto& entry : paged_)
    if (entry) bytes += size_.page_tokens * entry->width * 2;
  return bytes;
}

int64_t CudaCache::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& entry : states_)
    if (entry) bytes += entry->state_values() * 4 + entry->tail_values() * 2;
  return bytes;
}

PagedMemory& CudaCache::paged(int32_t entry) const {
  check(entry >= 0 && entry < static_cast<int32_t>(paged_.size()) && paged_[static_cast<size_t>(entry)] != nullptr,
        "the cache entry is paged");
  return *paged_[static_cast<size_t>(entry)];
}

StateMemory& CudaCache::state(int32_t entry) const {
  check(entry >= 0 && entry < static_cast<int32_t>(states_.size()) && states_[static_cast<size_t>(entry)] != nullptr,
        "the cache entry is a state");
  return *states_[static_cast<size_t>(entry)];
}

}  // namespace tensorfold::backend::cuda
