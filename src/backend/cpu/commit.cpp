// Keeping paths of a window: keys and values move to their pages, states replay the kept rows' records.
#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {

void CpuBackend::replay(CpuCache& cache, int32_t entry, int32_t slot, std::span<const float* const> records) {
  const auto& step = cache.window(entry).step;
  if (const auto* delta = std::get_if<GatedDelta>(&step)) replay_delta(*delta, cache, entry, slot, records);
  if (const auto* mamba = std::get_if<Mamba2>(&step)) replay_mamba(*mamba, cache, entry, slot, records);
  if (std::holds_alternative<NgramBranch>(step)) replay_ngram(cache, entry, slot, records);
  if (const auto* kimi = std::get_if<KimiDelta>(&step)) replay_kimi(*kimi, cache, entry, slot, records);
}

void CpuBackend::commit(const Plan& plan, Cache& any_cache, std::span<const KeptPath> kept) {
  auto& cache = static_cast<CpuCache&>(any_cache);
  const auto entries = static_cast<int32_t>(cache.layout().entries.size());
  uint64_t forward = 0;
  for (int32_t entry = 0; entry < entries; ++entry) forward = std::max(forward, cache.window(entry).forward);
  const PlanView view = view_of(plan, forward);
  for (const KeptPath& path : kept) {
    const SequenceRows& sequence = plan.sequences[static_cast<size_t>(path.sequence)];
    if (sequence.keep_all) continue;
    int32_t parent = -1;
    for (const int32_t row : path.rows) {
      check(row >= sequence.first_row && row < sequence.first_row + sequence.row_count &&
                plan.parents[static_cast<size_t>(row)] == parent,
            "a kept path that is no path of the window");
      parent = row;
    }
    for (int32_t entry = 0; entry < entries; ++entry) {
      if (cache.window(entry).forward != forward || forward == 0) continue;
      if (std::holds_alternative<PagedEntry>(cache.layout().entries[static_cast<size_t>(entry)])) {
        commit_pages(plan, view, cache, entry, path);
        continue;
      }
      const WindowRecord& window = cache.window(entry);
      std::vector<const float*> records;
      for (const int32_t row : path.rows) records.push_back(window.row(view.window_index[static_cast<size_t>(row)]));
      if (!records.empty()) replay(cache, entry, sequence.state_slot, records);
    }
  }
}

}  // namespace tensorfold::backend::cpu
