// The JSON files beside the tensors: config.json and generation_config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

namespace tensorfold::format {

/// What the checkpoint's author recommends; absent values are the server's choice.
struct GenerationDefaults {
  std::vector<int32_t> end_tokens;  ///< union of both files, ascending
  std::optional<double> temperature;
  std::optional<int32_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
};

struct CheckpointConfig {
  nlohmann::json json;  ///< config.json; its eos_token_id is generation.end_tokens
  GenerationDefaults generation;
};

/// Reads config.json and, where there is one, generation_config.json. do_sample false makes the temperature 0; true
/// without a temperature makes it 1. Throws Error(not_found) without config.json, Error(corrupt_file) for anything
/// malformed, all of it in one line.
CheckpointConfig load_config(const std::filesystem::path& directory);

/// The object that holds the language model's fields: text_config where there is one, else the config itself.
const nlohmann::json& text_config(const nlohmann::json& config);

/// The eos_token_id of a config and of its text_config, ascending; malformed ids are left out.
std::vector<int32_t> end_tokens(const nlohmann::json& config);

}  // namespace tensorfold::format
