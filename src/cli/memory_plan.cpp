#include "cli/memory_plan.h"

#include <algorithm>

namespace tensorfold::cli {
namespace {

constexpr uint64_t kGibibyte = 1ull << 30;

uint64_t reserve_of(uint64_t memory) { return std::min(memory / 2, std::max(4 * kGibibyte, memory / 10)); }

int32_t limited(uint64_t value, int32_t limit) {
  return static_cast<int32_t>(std::min<uint64_t>(value, static_cast<uint64_t>(limit)));
}

}  // namespace

MemoryPlan plan_memory(const MemoryNeeds& needs, uint64_t memory, int32_t context, int32_t parallel) {
  const auto tokens = static_cast<uint64_t>(context);
  const auto conversations = static_cast<uint64_t>(parallel);
  MemoryPlan plan;
  plan.reserve = reserve_of(memory);
  plan.budget = memory - plan.reserve;
  plan.caches = conversations * (tokens * needs.token + needs.state);
  plan.needed = needs.weights + plan.caches;
  plan.fits = plan.needed <= plan.budget;
  // budget = memory - max(4 GiB, memory / 10): the inverse of both branches.
  plan.smallest_memory = std::max(plan.needed + 4 * kGibibyte, (plan.needed * 10 + 8) / 9);
  if (plan.budget <= needs.weights) return plan;
  const uint64_t room = plan.budget - needs.weights;
  const uint64_t each = room / conversations;
  if (each > needs.state && needs.token > 0)
    plan.most_context = limited((each - needs.state) / needs.token, context) / 256 * 256;
  plan.most_parallel = limited(room / std::max<uint64_t>(1, tokens * needs.token + needs.state), parallel);
  return plan;
}

}  // namespace tensorfold::cli
