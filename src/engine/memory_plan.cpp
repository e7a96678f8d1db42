#include "engine/memory_plan.h"

#include <algorithm>

#include "base/error.h"

namespace tensorfold::engine {
namespace {

constexpr int32_t default_lanes = 4;
constexpr int32_t least_context = 128;
// Kept states beside the running ones: few, since each may be large.
constexpr int64_t most_kept_slots = 64;
constexpr int64_t kept_state_part = 4;

int64_t pages_for(const EngineOptions& options, int64_t tokens) {
  return (tokens + options.page_tokens - 1) / options.page_tokens;
}

/// Room beyond the context for the rows of a window, and for the copy of a shared page.
int64_t spare_pages(const EngineOptions& options) { return pages_for(options, options.window_rows) + 2; }

/// Two lanes at least: the row check compares neighbours.
int64_t running_slots(int32_t lanes) { return std::max(lanes, 2); }

}  // namespace

uint64_t least_budget(const EngineOptions& options, const CacheCosts& costs, int32_t conversations) {
  const int64_t state_bytes = std::max<int64_t>(costs.state_bytes, 1);
  const int64_t page_bytes = std::max<int64_t>(costs.page_bytes, 1);
  const int64_t pages = pages_for(options, std::max(options.context, least_context)) * conversations;
  const int64_t running = (pages + spare_pages(options)) * page_bytes +
                          running_slots(options.parallel > 0 ? options.parallel : default_lanes) * state_bytes;
  if (options.kept_states > 0) return static_cast<uint64_t>(running + options.kept_states * state_bytes);
  // The kept states grow with the budget: n of them from 4 n states on, which leave 3 n for the rest. So the rest fits
  // whatever the budget above it once 3 n states hold it, and below that with n - 1 kept ones.
  const int64_t enough = (running + (kept_state_part - 1) * state_bytes - 1) / ((kept_state_part - 1) * state_bytes);
  return static_cast<uint64_t>(running + std::clamp<int64_t>(enough - 1, 1, most_kept_slots) * state_bytes);
}

MemoryPlan plan_memory(const EngineOptions& options, const CacheCosts& costs, int32_t native_context, int32_t max_rows,
                       uint64_t budget) {
  MemoryPlan plan;
  plan.lanes = options.parallel > 0 ? options.parallel : default_lanes;
  const auto bytes = static_cast<int64_t>(std::min<uint64_t>(budget, uint64_t{1} << 60));
  const int64_t state_bytes = std::max<int64_t>(costs.state_bytes, 1);
  const int64_t page_bytes = std::max<int64_t>(costs.page_bytes, 1);
  const int64_t affordable = bytes / kept_state_part / state_bytes;
  const int64_t kept =
      options.kept_states > 0 ? options.kept_states : std::clamp<int64_t>(affordable, 1, most_kept_slots);
  plan.kept_states = static_cast<int32_t>(kept);
  const int64_t slots = running_slots(plan.lanes) + kept;
  const int64_t page_budget = (bytes - slots * state_bytes) / page_bytes;
  const int64_t spare = spare_pages(options);
  const int64_t fitting = std::max<int64_t>(page_budget - spare, 0) * options.page_tokens;
  if (fitting < least_context) {
    fail(ErrorKind::capacity, "memory for caches is too small: {} MiB hold {} tokens", bytes >> 20, fitting);
  }
  if (options.context > 0) {
    if (options.context > fitting) {
      fail(ErrorKind::capacity, "a context of {} tokens does not fit the memory for caches; the largest is {}",
           options.context, fitting);
    }
    plan.context = options.context;
  } else {
    // Half, so that a prompt can be kept for the next turn beside the one that runs.
    int64_t context = std::min<int64_t>(native_context, std::max<int64_t>(fitting / 2, least_context));
    if (context < native_context && context > 1024) context -= context % 1024;
    plan.context = static_cast<int32_t>(context);
  }
  const int64_t wanted = 2 * (plan.lanes * pages_for(options, plan.context) + spare) + plan.lanes * 2;
  plan.cache = {.page_tokens = options.page_tokens,
                .pages = static_cast<int32_t>(std::min({page_budget, wanted, int64_t{1} << 30})),
                .state_slots = static_cast<int32_t>(slots),
                .window_rows = max_rows};
  return plan;
}

}  // namespace tensorfold::engine
