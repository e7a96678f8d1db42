// From a directory to a model: what the command line, the server and tests call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "families/inventory.h"
#include "families/model.h"
#include "format/config.h"
#include "format/safetensors_store.h"

namespace tensorfold::families {

/// A checkpoint whose every header, name, shape and dtype has been checked against its config.
struct Checkpoint {
  const Family* family = nullptr;
  format::CheckpointConfig config;
  std::unique_ptr<format::SafetensorsStore> store;
  std::vector<std::string> notes;  ///< what is skipped
};

/// The family of a config. Throws Error(unsupported) that names its model_type and what is served.
const Family& require_family(const nlohmann::json& config);

/// Reads and checks everything but the tensors' bytes. Throws one Error that lists all problems of a step.
Checkpoint open_checkpoint(const std::filesystem::path& directory);

struct LoadedModel {
  std::unique_ptr<Model> model;
  format::GenerationDefaults generation;
  nlohmann::json config;
  std::vector<std::string> notes;
};

/// Opens, checks and loads. `max_rows`: most rows of one plan. The backend outlives the model.
LoadedModel load_model(const std::filesystem::path& directory, backend::Backend& backend, int32_t max_rows);

/// A model of the config's shapes with random weights in the config's own quantisation.
LoadedModel load_synthetic(const nlohmann::json& config, uint64_t seed, backend::Backend& backend, int32_t max_rows);

/// What `info` says of a checkpoint, from config.json alone; where tensor files lie beside it, their headers say
/// whether the draft head is there.
struct CheckpointReport {
  const Family* family = nullptr;
  ModelInfo info;
  std::string quantization;       ///< for people
  WeightBytes weights;            ///< without the draft head
  uint64_t draft_head_bytes = 0;  ///< of the head that the config declares
  backend::CacheLayout cache;
  format::GenerationDefaults generation;
  std::optional<bool> draft_head_found;  ///< nothing: no (whole) tensor files to look into
  std::string files_problem;             ///< why not
};
CheckpointReport describe_checkpoint(const std::filesystem::path& directory);

/// Values a token keeps in pages, over all entries (times 4 on the CPU, 2 with a 16-bit cache).
int64_t paged_values(const backend::CacheLayout& layout);
/// Values of the recurrent state of one sequence (times 4).
int64_t state_values(const backend::CacheLayout& layout);

}  // namespace tensorfold::families
