// The drafters of a model, from a user's choices.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "drafters/copy_drafter.h"
#include "drafters/dflash_drafter.h"
#include "drafters/mtp_drafter.h"

namespace tensorfold::drafters {

struct DrafterChoice {
  bool copies = true;  ///< copy what the context repeats
  bool mtp = true;     ///< the checkpoint's own head, where it has one; left out beside a block drafter
  std::optional<std::filesystem::path> block_drafter;  ///< directory of a DFlash checkpoint
  MtpOptions mtp_options;
  DflashOptions block_options;
};

/// Loads them in the order in which they are asked. Throws what opening and loading the block drafter throws; backend
/// and model outlive the drafters.
std::vector<std::unique_ptr<Drafter>> make_drafters(backend::Backend& backend, families::Model& model,
                                                    const DrafterChoice& choice);

}  // namespace tensorfold::drafters
