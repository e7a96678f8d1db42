// The arithmetic of `plan`.
#pragma once

#include <cstdint>

namespace tensorfold::cli {

/// Bytes a model takes.
struct MemoryNeeds {
  uint64_t weights = 0;
  uint64_t token = 0;  ///< paged cache of one token
  uint64_t state = 0;  ///< recurrent state of one conversation
};

struct MemoryPlan {
  uint64_t reserve = 0;  ///< left to the rest of the machine: a tenth, at least 4 GiB, at most half
  uint64_t budget = 0;   ///< memory less the reserve
  uint64_t caches = 0;   ///< of all conversations
  uint64_t needed = 0;   ///< weights and caches
  bool fits = false;
  int32_t most_context = 0;      ///< largest multiple of 256 that fits with this `parallel`; 0: none
  int32_t most_parallel = 0;     ///< most conversations of this context that fit; 0: none
  uint64_t smallest_memory = 0;  ///< of a machine on which what was asked fits
};

/// `parallel` conversations of `context` tokens each, both at least 1, on a machine with `memory` bytes.
MemoryPlan plan_memory(const MemoryNeeds& needs, uint64_t memory, int32_t context, int32_t parallel);

}  // namespace tensorfold::cli
