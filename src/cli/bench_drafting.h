// What a round with drafts costs, through the engine: proposing, verifying, drawing, keeping.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "backend/backend.h"
#include "families/model.h"

namespace tensorfold::cli {

struct DraftingBench {
  std::string drafter;  ///< directory of a DFlash drafter, or its config.json for random weights; empty: the MTP head
  int32_t drafts = 0;   ///< a round; 0: as many as the drafter gives
  int32_t tokens = 48;  ///< of the replies that are timed
};

/// Times replies with so many drafts a round and without drafts, in turns: {"drafter", "rows", "milliseconds",
/// "serial_milliseconds", "cost", "accepted_a_round"}. Throws Error(invalid_request) where there is nothing to draft
/// with.
nlohmann::json measure_drafting(backend::Backend& backend, families::Model& model, const DraftingBench& bench);

}  // namespace tensorfold::cli
