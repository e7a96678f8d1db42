// The arithmetic of memory: what `plan` and `info` tell, what `serve` gives the engine, and what is refused before it
// is fetched.
#pragma once

#include <cstdint>

#include "families/checkpoint.h"

namespace tensorfold::cli {

/// Where a model would run.
struct Machine {
  std::string name;          ///< for people: "the CPU", or the GPU's name
  uint64_t memory = 0;       ///< bytes
  uint64_t value_bytes = 4;  ///< of a cached value
  bool is_gpu = false;
};

/// The machine of `--backend` (auto, cpu, cuda) and `--device`. Throws what opening the GPU throws, for cuda.
Machine machine_of(const std::string& backend, int32_t device);

/// What `serve` may take of it: 70 % of a computer's memory; of a GPU's all but a tenth, at least 4 GiB, at most half.
uint64_t usable_memory(const Machine& machine);

/// Bytes a model takes.
struct MemoryNeeds {
  uint64_t weights = 0;
  uint64_t token = 0;  ///< paged cache of one token, the draft head's included
  uint64_t state = 0;  ///< recurrent state of one conversation
};
/// `drafts`: whether the model's own draft head, where there is one, is used.
MemoryNeeds memory_needs(const families::CheckpointReport& report, const Machine& machine, bool drafts = true);

/// Bytes of the caches of `parallel` conversations of `context` tokens, by the engine's own formula: their pages and
/// states, the kept states (0: a quarter of the bytes), and the rows of a window.
uint64_t cache_bytes(const MemoryNeeds& needs, int32_t context, int32_t parallel, int32_t kept_states = 0);

struct MemoryPlan {
  uint64_t budget = 0;  ///< usable_memory
  uint64_t caches = 0;  ///< of all conversations
  uint64_t needed = 0;  ///< weights and caches
  bool fits = false;
  int32_t most_context = 0;      ///< largest multiple of 256 that fits with this `parallel`; 0: none
  int32_t most_parallel = 0;     ///< most conversations of this context that fit; 0: none
  uint64_t smallest_memory = 0;  ///< of a machine of this kind on which what was asked fits
};

/// `parallel` conversations of `context` tokens each, both at least 1.
MemoryPlan plan_memory(const MemoryNeeds& needs, const Machine& machine, int32_t context, int32_t parallel);

/// Whether an option in GiB is 0 or a size that bytes can count: no NaN, nothing beyond 2^30 GiB.
bool is_memory(double gib);

/// Bytes for people: "18.53 GB", "2.5 MB".
std::string gigabytes(uint64_t bytes);

}  // namespace tensorfold::cli
