// Random weights of a DFlash drafter's shapes, for measurements without a checkpoint.
#pragma once

#include <cstdint>
#include <memory>

#include "drafters/dflash_config.h"
#include "format/synthetic_store.h"

namespace tensorfold::drafters {

/// Every tensor that DflashDrafter reads for this config, as bf16; `vocabulary`: the target's.
std::unique_ptr<format::SyntheticStore> make_synthetic_drafter(const DflashConfig& config, int64_t vocabulary,
                                                               uint64_t seed);

}  // namespace tensorfold::drafters
