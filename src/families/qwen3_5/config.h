// What config.json of a dense Qwen3.5-architecture checkpoint means (specs: Qwen3.8-27B A.1 and A.2).
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "backend/cache.h"
#include "families/rotary_fields.h"

namespace tensorfold::families::qwen3_5 {

struct Config {
  int32_t hidden = 0;
  int32_t intermediate = 0;
  int32_t layers = 0;
  int32_t vocabulary = 0;
  int32_t native_context = 0;
  float epsilon = 0.0F;
  bool tied = false;
  int32_t mtp_layers = 0;
  std::vector<bool> attends;  ///< one a layer: full attention, else gated delta

  // Full attention.
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  bool gated = true;  ///< queries come with an output gate
  RotaryFields rotary;

  backend::GatedDeltaShape delta;

  [[nodiscard]] int32_t query_outputs() const { return heads * head_dim * (gated ? 2 : 1); }
  [[nodiscard]] int32_t kv_width() const { return kv_heads * head_dim; }
  [[nodiscard]] int32_t value_width() const { return delta.value_heads * delta.value_dim; }
};

/// Throws Error(unsupported) that names every field that is missing, malformed or not served.
Config parse_config(const nlohmann::json& config);

}  // namespace tensorfold::families::qwen3_5
