#include "cli/memory_plan.h"

#include <algorithm>
#include <map>
#include <variant>

#include <fmt/format.h>

#include "backend/backend.h"
#include "base/error.h"
#include "base/physical_memory.h"
#include "engine/memory_plan.h"

namespace tensorfold::cli {
namespace {

constexpr uint64_t kGibibyte = 1ull << 30;
/// The largest of 1 to `limit` that fits, or 0; what is larger never fits better.
template <typename Fits>
int32_t most_that_fits(int32_t limit, Fits fits) {
  int32_t most = 0;
  for (int32_t high = limit; most < high;) {
    const int32_t middle = most + (high - most + 1) / 2;
    if (fits(middle))
      most = middle;
    else
      high = middle - 1;
  }
  return most;
}

/// Values a token of the draft head caches: those of one attention layer, which all heads here have.
uint64_t draft_head_values(const backend::CacheLayout& layout) {
  std::map<std::string, int64_t> layers;
  for (const backend::CacheEntry& entry : layout.entries) {
    const auto* paged = std::get_if<backend::PagedEntry>(&entry);
    if (paged == nullptr) continue;
    const size_t index = paged->name.find(" index");
    layers[paged->name.substr(0, index)] += paged->width;
  }
  int64_t most = 0;
  for (const auto& [name, values] : layers) most = std::max(most, values);
  return static_cast<uint64_t>(most);
}

}  // namespace

Machine machine_of(const std::string& backend, int32_t device) {
  if (backend != "cpu") {
    try {
      const auto gpu = backend::make_cuda_backend(device);
      return {gpu->info().device, gpu->info().memory_bytes, 2, true};
    } catch (const Error&) {
      if (backend == "cuda") throw;
    }
  }
  return {"the CPU", physical_memory(), 4, false};
}

uint64_t usable_memory(const Machine& machine) {
  if (!machine.is_gpu) return machine.memory / 10 * 7;
  return machine.memory - std::min(machine.memory / 2, std::max(4 * kGibibyte, machine.memory / 10));
}

MemoryNeeds memory_needs(const families::CheckpointReport& report, const Machine& machine, bool drafts) {
  const bool has_head = report.info.draft_head && report.draft_head_found.value_or(true);  // unknown: counted
  const uint64_t values = static_cast<uint64_t>(families::paged_values(report.cache)) +
                          (has_head && drafts ? draft_head_values(report.cache) : 0);
  return {.weights = report.weights.resident + (has_head ? report.draft_head_bytes : 0),
          .token = values * machine.value_bytes,
          .state = static_cast<uint64_t>(families::state_values(report.cache)) * 4};
}

uint64_t cache_bytes(const MemoryNeeds& needs, int32_t context, int32_t parallel, int32_t kept_states) {
  engine::EngineOptions options;
  options.context = context;
  options.parallel = parallel;
  options.kept_states = kept_states;
  const engine::CacheCosts costs{.page_bytes = static_cast<int64_t>(needs.token) * options.page_tokens,
                                 .state_bytes = static_cast<int64_t>(needs.state)};
  return engine::least_budget(options, costs, parallel);
}

MemoryPlan plan_memory(const MemoryNeeds& needs, const Machine& machine, int32_t context, int32_t parallel) {
  MemoryPlan plan;
  plan.budget = usable_memory(machine);
  plan.caches = cache_bytes(needs, context, parallel);
  plan.needed = needs.weights + plan.caches;
  plan.fits = plan.needed <= plan.budget;
  // The inverse of usable_memory, of both its branches for a GPU.
  plan.smallest_memory =
      machine.is_gpu ? std::max(plan.needed + 4 * kGibibyte, (plan.needed * 10 + 8) / 9) : (plan.needed + 6) / 7 * 10;
  if (plan.budget <= needs.weights) return plan;
  const uint64_t room = plan.budget - needs.weights;
  plan.most_context = 256 * most_that_fits(context / 256, [&](int32_t blocks) {
                        return cache_bytes(needs, 256 * blocks, parallel) <= room;
                      });
  plan.most_parallel =
      most_that_fits(parallel, [&](int32_t lanes) { return cache_bytes(needs, context, lanes) <= room; });
  return plan;
}

bool is_memory(double gib) { return gib >= 0.0 && gib <= static_cast<double>(kGibibyte); }

std::string gigabytes(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return bytes < 1'000'000'000 ? fmt::format("{:.1f} MB", value / 1e6) : fmt::format("{:.2f} GB", value / 1e9);
}

}  // namespace tensorfold::cli
