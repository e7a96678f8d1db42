#include "engine/cache_pool.h"

#include <algorithm>

#include "base/error.h"

namespace tensorfold::engine {

CachePool::CachePool(backend::Backend& backend, const backend::CacheLayout& target,
                     std::span<const backend::CacheLayout> parallel_layouts, const backend::CacheSize& size)
    : backend_(backend), size_(size), pages_(size.pages), slots_(size.state_slots) {
  check(size.page_tokens >= 1 && size.pages >= 1 && size.state_slots >= 1, "a cache needs pages and slots");
  caches_.push_back(backend.make_cache(target, size));
  state_bytes_ = caches_.front()->state_bytes();
  for (const backend::CacheLayout& layout : parallel_layouts) {
    parallel_.push_back(nullptr);
    if (layout.entries.empty()) continue;
    caches_.push_back(backend.make_cache(layout, size));
    parallel_.back() = caches_.back().get();
  }
  for (const auto& cache : caches_) page_bytes_ += cache->page_bytes();
}

bool CachePool::open(CacheLane& lane) {
  const auto slot = slots_.allocate();
  if (!slot) return false;
  lane = {.pages = {}, .state_slot = *slot, .committed = 0};
  if (has_state()) backend_.clear_state(target(), *slot);
  return true;
}

void CachePool::close(CacheLane& lane) {
  for (const int32_t page : lane.pages) pages_.release(page);
  if (lane.state_slot >= 0) slots_.release(lane.state_slot);
  lane = {};
}

int32_t CachePool::pages_needed(const CacheLane& lane, int32_t tokens) const {
  int32_t needed = std::max(0, pages_for(tokens) - static_cast<int32_t>(lane.pages.size()));
  const auto next = static_cast<size_t>(lane.committed / page_tokens());
  for (size_t j = next; j < lane.pages.size(); ++j) needed += pages_.references(lane.pages[j]) > 1 ? 1 : 0;
  return needed;
}

bool CachePool::reserve(CacheLane& lane, int32_t tokens) {
  const auto next = static_cast<size_t>(lane.committed / page_tokens());
  for (size_t j = next; j < lane.pages.size(); ++j) {
    const int32_t shared = lane.pages[j];
    if (pages_.references(shared) == 1) continue;
    const auto own = pages_.allocate();
    if (!own) return false;
    // Only the page that is partly filled holds anything of this lane.
    if (j == next && lane.committed % page_tokens() != 0) {
      for (const auto& cache : caches_) backend_.copy_page(*cache, shared, *own);
      ++pages_copied_;
    }
    pages_.release(shared);
    lane.pages[j] = *own;
  }
  while (static_cast<int32_t>(lane.pages.size()) < pages_for(tokens)) {
    const auto page = pages_.allocate();
    if (!page) return false;
    lane.pages.push_back(*page);
  }
  return true;
}

void CachePool::trim(CacheLane& lane) {
  while (static_cast<int32_t>(lane.pages.size()) > pages_for(lane.committed)) {
    pages_.release(lane.pages.back());
    lane.pages.pop_back();
  }
}

void CachePool::read_page(int32_t page, std::span<std::byte> out) {
  for (const auto& cache : caches_) {
    const auto bytes = static_cast<size_t>(cache->page_bytes());
    backend_.read_page(*cache, page, out.first(bytes));
    out = out.subspan(bytes);
  }
}

void CachePool::write_page(int32_t page, std::span<const std::byte> in) {
  for (const auto& cache : caches_) {
    const auto bytes = static_cast<size_t>(cache->page_bytes());
    backend_.write_page(*cache, page, in.first(bytes));
    in = in.subspan(bytes);
  }
}

void CachePool::read_state(int32_t slot, std::span<std::byte> out) {
  if (has_state()) backend_.read_state(target(), slot, out);
}

void CachePool::write_state(int32_t slot, std::span<const std::byte> in) {
  if (has_state()) backend_.write_state(target(), slot, in);
}

void CachePool::copy_state(int32_t from, int32_t to) {
  if (has_state()) backend_.copy_state(target(), from, to);
}

CacheCosts measure_cache(backend::Backend& backend, const backend::CacheLayout& target,
                         std::span<const backend::CacheLayout> parallel_layouts, int32_t page_tokens) {
  const backend::CacheSize one{.page_tokens = page_tokens, .pages = 1, .state_slots = 1, .window_rows = 1};
  const CachePool pool(backend, target, parallel_layouts, one);
  return {.page_bytes = pool.page_bytes(), .state_bytes = pool.state_bytes()};
}

}  // namespace tensorfold::engine
