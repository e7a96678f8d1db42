// What config.json of a GLM-5.3-Flash checkpoint means (specs: GLM-5.3-Flash, 2); the text part alone.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "backend/cache.h"

namespace tensorfold::families::glm5_next {

struct LayerKind {
  bool attends = false;  ///< latent attention over an index's choice; else Kimi delta
  bool sparse = false;   ///< mixture of experts; else a dense MLP
};

struct Config {
  int32_t hidden = 0;
  int32_t vocabulary = 0;
  int32_t native_context = 0;
  float epsilon = 0.0F;
  bool mtp = false;
  std::vector<LayerKind> layers;

  // Residual streams.
  int32_t streams = 0;
  float stream_epsilon = 0.0F;
  int32_t stream_rounds = 0;

  backend::KimiDeltaShape delta;
  float lower_bound = 0.0F;  ///< of log decays

  // Latent attention.
  int32_t heads = 0;
  int32_t query_rank = 0;
  int32_t latent = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  int32_t index_heads = 0;
  int32_t index_dim = 0;
  int32_t block = 0;   ///< positions a pool
  int32_t chosen = 0;  ///< pools a row keeps

  // MLPs.
  int32_t intermediate = 0;
  int32_t experts = 0;
  int32_t chosen_experts = 0;
  int32_t expert_width = 0;
  int32_t shared_width = 0;
  bool normalise = true;
  float routed_factor = 1.0F;
  float limit = 0.0F;  ///< of SwiGLU's inputs

  [[nodiscard]] int64_t residual() const { return 1LL * streams * hidden; }
  /// Products of the normed streams that make a row's stream weights.
  [[nodiscard]] int32_t stream_weights() const { return streams * (streams + 2); }
  /// The longest context in which a row attends to every position.
  [[nodiscard]] int32_t dense_context() const { return chosen * block + block - 1; }
};

/// Throws Error(unsupported) that names every field that is missing, malformed or not served.
Config parse_config(const nlohmann::json& config);

}  // namespace tensorfold::families::glm5_next
