// How the memory budget is divided: state slots, pages, and the context one sequence may use.
#pragma once

#include <cstdint>

#include "engine/cache_pool.h"
#include "engine/engine.h"

namespace tensorfold::engine {

struct MemoryPlan {
  int32_t lanes = 0;
  int32_t context = 0;
  int32_t kept_states = 0;
  backend::CacheSize cache;
};

/// `budget`: bytes for the caches. `max_rows`: Model::max_rows. Throws Error(capacity) when not even a small context
/// fits, or the wanted one does not (the message names the largest that does).
MemoryPlan plan_memory(const EngineOptions& options, const CacheCosts& costs, int32_t native_context, int32_t max_rows,
                       uint64_t budget);

/// The budget from which on plan_memory has room for `conversations` sequences of `options.context` tokens at once,
/// beside the lanes' states and the kept ones.
uint64_t least_budget(const EngineOptions& options, const CacheCosts& costs, int32_t conversations);

}  // namespace tensorfold::engine
