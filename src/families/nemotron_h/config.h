// What config.json of a Nemotron-H checkpoint means (specs: Nemotron 3.5, 1).
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "backend/cache.h"

namespace tensorfold::families::nemotron_h {

enum class LayerKind { mamba, attention, experts };

struct Config {
  int32_t hidden = 0;
  int32_t vocabulary = 0;
  int32_t native_context = 0;
  float epsilon = 0.0F;
  bool tied = false;
  int32_t mtp_layers = 0;  ///< draft heads that the config declares
  bool mtp = false;        ///< an MTP head of one attention and one expert layer
  std::vector<LayerKind> layers;

  backend::Mamba2Shape mamba;
  float least_step = 0.0F;
  float most_step = 0.0F;

  // Attention, without positions.
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;

  // Experts.
  int32_t experts = 0;
  int32_t chosen = 0;
  int32_t expert_width = 0;
  int32_t shared_width = 0;
  bool normalise = true;
  float routed_factor = 1.0F;

  [[nodiscard]] int64_t query_width() const { return 1LL * heads * head_dim; }
  [[nodiscard]] int64_t kv_width() const { return 1LL * kv_heads * head_dim; }
  /// Outputs of a Mamba layer's first product: gate | channels | time steps.
  [[nodiscard]] int64_t mamba_width() const { return mamba.values() + mamba.channels() + mamba.heads; }
};

/// Throws Error(unsupported) that names every field that is missing, malformed or not served.
Config parse_config(const nlohmann::json& config);

}  // namespace tensorfold::families::nemotron_h
