#include "cli/memory_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "backend/backend.h"
#include "base/error.h"
#include "base/physical_memory.h"

namespace tensorfold::cli {
namespace {

constexpr uint64_t kGibibyte = 1ull << 30;
constexpr uint64_t kWindowTokens = 256;  // more than the rows of a window and the copy of a shared page take

/// The engine holds two running states at least, and one kept state.
uint64_t states_of(uint64_t conversations) { return std::max<uint64_t>(conversations, 2) + 1; }

int32_t limited(uint64_t value, int32_t limit) {
  return static_cast<int32_t>(std::min<uint64_t>(value, static_cast<uint64_t>(limit)));
}

int32_t most_context(const MemoryNeeds& needs, uint64_t room, int32_t parallel, int32_t limit) {
  const auto conversations = static_cast<uint64_t>(parallel);
  const uint64_t fixed = states_of(conversations) * needs.state + kWindowTokens * needs.token;
  if (room <= fixed || needs.token == 0) return 0;
  return limited((room - fixed) / needs.token / conversations, limit) / 256 * 256;
}

int32_t most_parallel(const MemoryNeeds& needs, uint64_t room, int32_t context, int32_t limit) {
  const auto fits = [&](int32_t parallel) { return cache_bytes(needs, context, parallel) <= room; };
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

MemoryNeeds memory_needs(const families::CheckpointReport& report, const Machine& machine) {
  const bool has_head = report.draft_head_found.value_or(true);  // unknown: counted
  return {.weights = report.weights.resident + (has_head ? report.draft_head_bytes : 0),
          .token = static_cast<uint64_t>(families::paged_values(report.cache)) * machine.value_bytes,
          .state = static_cast<uint64_t>(families::state_values(report.cache)) * 4};
}

uint64_t cache_bytes(const MemoryNeeds& needs, int32_t context, int32_t parallel) {
  const auto conversations = static_cast<uint64_t>(parallel);
  return (conversations * static_cast<uint64_t>(context) + kWindowTokens) * needs.token +
         states_of(conversations) * needs.state;
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
  plan.most_context = most_context(needs, room, parallel, context);
  plan.most_parallel = most_parallel(needs, room, context, parallel);
  return plan;
}

std::string gigabytes(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return bytes < 1'000'000'000 ? fmt::format("{:.1f} MB", value / 1e6) : fmt::format("{:.2f} GB", value / 1e9);
}

}  // namespace tensorfold::cli
