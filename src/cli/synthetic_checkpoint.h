// Random weights as a checkpoint on disk: to measure how a model of these shapes starts.
#pragma once

#include <cstdint>
#include <filesystem>

#include <nlohmann/json_fwd.hpp>

namespace tensorfold::cli {

/// Writes the synthetic weights of `config` (the ones that load_synthetic makes of the seed) as safetensors files and
/// config.json into a new or empty directory; returns the tensors' bytes. No tokenizer. Throws Error(io).
uint64_t save_synthetic(const nlohmann::json& config, uint64_t seed, const std::filesystem::path& directory);

}  // namespace tensorfold::cli
