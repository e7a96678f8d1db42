// Rows of paged entries: where a plan row's own goes, and where the rows lie that it sees (committed ones in pages, its
// path's in the window's records).
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {

float* CpuBackend::own_row(const Plan& plan, CpuCache& cache, int32_t entry, int64_t row) const {
  const auto r = static_cast<size_t>(row);
  const int32_t index = view_.window_index[r];
  if (index >= 0) return cache.window(entry).rows.data() + index * cache.paged(entry).width;
  const SequenceRows& sequence = plan.sequences[static_cast<size_t>(plan.owner[r])];
  const int64_t position = own_position(plan, row);
  const int64_t page_tokens = cache.size().page_tokens;
  const int32_t page = plan.pages_of(sequence)[static_cast<size_t>(position / page_tokens)];
  return cache.page_row(entry, page, position % page_tokens);
}

int64_t CpuBackend::own_position(const Plan& plan, int64_t row) const {
  const auto r = static_cast<size_t>(row);
  return plan.sequences[static_cast<size_t>(plan.owner[r])].committed + view_.depth[r];
}

const float* CpuBackend::seen_row(const Plan& plan, CpuCache& cache, int32_t entry, int64_t row,
                                  int64_t position) const {
  const SequenceRows& sequence = plan.sequences[static_cast<size_t>(plan.owner[static_cast<size_t>(row)])];
  const int64_t in_pages = sequence.committed + (sequence.keep_all ? sequence.row_count : 0);
  if (position < in_pages) {
    const int64_t page_tokens = cache.size().page_tokens;
    const int32_t page = plan.pages_of(sequence)[static_cast<size_t>(position / page_tokens)];
    return cache.page_row(entry, page, position % page_tokens);
  }
  auto r = static_cast<int32_t>(row);
  while (own_position(plan, r) > position) r = plan.parents[static_cast<size_t>(r)];
  return own_row(plan, cache, entry, r);
}

void CpuBackend::seen_rows(const Plan& plan, CpuCache& cache, int32_t entry, int64_t row, int64_t first, int64_t count,
                           bool bidirectional, const float** rows) const {
  const SequenceRows& sequence = plan.sequences[static_cast<size_t>(plan.owner[static_cast<size_t>(row)])];
  const std::span<const int32_t> pages = plan.pages_of(sequence);
  const int64_t page_tokens = cache.size().page_tokens;
  const int64_t in_pages = sequence.committed + (sequence.keep_all ? sequence.row_count : 0);
  const int64_t width = cache.paged(entry).width;
  int64_t j = 0;
  while (j < count && first + j < in_pages) {
    const int64_t position = first + j;
    const int64_t token = position % page_tokens;
    const int64_t run = std::min({page_tokens - token, count - j, in_pages - position});
    const float* from = cache.page_row(entry, pages[static_cast<size_t>(position / page_tokens)], token);
    for (int64_t i = 0; i < run; ++i) rows[j + i] = from + i * width;
    j += run;
  }
  if (j == count) return;
  if (bidirectional) {
    for (; j < count; ++j) rows[j] = own_row(plan, cache, entry, sequence.first_row + first + j - in_pages);
    return;
  }
  // The row's own path, upwards: depth d stands at position committed + d.
  for (auto r = static_cast<int32_t>(row); r >= 0; r = plan.parents[static_cast<size_t>(r)]) {
    const int64_t place = own_position(plan, r) - first;
    if (place < j) break;
    if (place < count) rows[place] = own_row(plan, cache, entry, r);
  }
}

void CpuBackend::check_pages(const Plan& plan, const CpuCache& cache) {
  for (const SequenceRows& sequence : plan.sequences) {
    const int64_t tokens = sequence.committed + (sequence.keep_all ? sequence.row_count : 0);
    check(tokens <= 1LL * sequence.page_count * cache.size().page_tokens, "a page table that is too short");
    for (const int32_t page : plan.pages_of(sequence)) check(page >= 0 && page < cache.size().pages, "an unknown page");
  }
}

void CpuBackend::commit_pages(const Plan& plan, const PlanView& view, CpuCache& cache, int32_t entry,
                              const KeptPath& path) {
  const SequenceRows& sequence = plan.sequences[static_cast<size_t>(path.sequence)];
  const std::span<const int32_t> pages = plan.pages_of(sequence);
  const int64_t width = cache.paged(entry).width;
  const int64_t page_tokens = cache.size().page_tokens;
  for (size_t i = 0; i < path.rows.size(); ++i) {
    const int64_t position = sequence.committed + static_cast<int64_t>(i);
    const int32_t index = view.window_index[static_cast<size_t>(path.rows[i])];
    std::memcpy(cache.page_row(entry, pages[static_cast<size_t>(position / page_tokens)], position % page_tokens),
                cache.window(entry).rows.data() + index * width, static_cast<size_t>(width) * sizeof(float));
  }
}

}  // namespace tensorfold::backend::cpu
