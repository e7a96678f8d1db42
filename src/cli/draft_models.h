// Where a model's drafts come from, as far as its user has to do something: the draft head in a side file, the draft
// model of its family.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "families/checkpoint.h"

namespace tensorfold::cli {

/// The folder of the draft model for models of these sizes, if it is complete in the cache.
std::optional<std::filesystem::path> cached_drafter(const families::ModelInfo& info);

/// A line each for what is missing, with the command that gets it.
std::vector<std::string> draft_hints(const families::CheckpointReport& report);

/// The folder to load `model` from, when the files in `directory` lack the draft head that their config declares and
/// `model` is a repository that has it in a side file: completed from the hub, if it can be reached within seconds.
/// `directory` itself otherwise. Never throws for a hub that cannot be reached.
std::string with_draft_head(const std::string& model, const std::string& directory);

}  // namespace tensorfold::cli
