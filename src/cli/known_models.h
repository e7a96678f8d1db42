// The published checkpoints that the families were written for, and the draft models that belong to them: what `models`
// lists, which conversions are untested, and which command gets a missing draft head.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "families/checkpoint.h"
#include "families/model.h"

namespace tensorfold::cli {

struct KnownModel {
  std::string_view repo;    ///< owner/name
  std::string_view family;  ///< its model_type
  int64_t hidden_size = 0;
  int32_t layers = 0;
  std::string_view size;         ///< of its files, for people; empty: unknown
  std::string_view head_file;    ///< the side file with its draft head; empty: no such file
  std::string_view former_repo;  ///< where it was published before; empty: nowhere
};

/// A block drafter that was trained for a model of these sizes.
struct KnownDrafter {
  std::string_view repo;
  std::string_view family;
  int64_t hidden_size = 0;
  int32_t layers = 0;
  std::string_view size;
};

std::span<const KnownModel> known_models();
std::span<const KnownDrafter> known_drafters();

/// The known model of this name ("owner/name", also with "@revision" or under its former owner), or null.
const KnownModel* known_model(std::string_view name);
/// The known model of these sizes that has its draft head in a side file, or null. Originals, which are not packed, have
/// theirs among their own tensors.
const KnownModel* model_with_head_file(const families::CheckpointReport& report);
/// The drafter for a model of these sizes, or null.
const KnownDrafter* known_drafter(const families::ModelInfo& info);

/// What to say of `model` when it is a repository and none of those its family was written for; empty otherwise.
std::string untested_note(const std::string& model, std::string_view family);

}  // namespace tensorfold::cli
