// What config.json of a Gemma 4 checkpoint with experts means (specs: Gemma 4, 1); the text part alone.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace tensorfold::families::gemma4 {

/// Rotary embedding of one kind of layer: pairs (i, i + head_dim / 2), of which the first `active` turn.
struct RotaryKind {
  double theta = 0.0;
  double active = 1.0;  ///< share of the pairs
};

struct LayerShape {
  bool sliding = true;
  int32_t head_dim = 0;
  int32_t kv_heads = 0;
  bool own_values = true;  ///< false: values are the raw keys
};

struct Config {
  int32_t hidden = 0;
  int32_t vocabulary = 0;
  int32_t native_context = 0;
  float epsilon = 0.0F;
  float soft_cap = 0.0F;  ///< of the logits; 0: none
  int32_t heads = 0;
  int32_t window = 0;  ///< of sliding layers, the row itself included
  RotaryKind sliding_rotary;
  RotaryKind full_rotary;
  std::vector<LayerShape> layers;
  int32_t intermediate = 0;  ///< of the dense MLP
  int32_t experts = 0;
  int32_t chosen = 0;
  int32_t expert_width = 0;

  /// What an embedding row is multiplied with: sqrt(hidden), not rounded further than fp32.
  [[nodiscard]] float embedding_factor() const;
  [[nodiscard]] int64_t query_width(const LayerShape& layer) const { return 1LL * heads * layer.head_dim; }
  [[nodiscard]] static int64_t kv_width(const LayerShape& layer) { return 1LL * layer.kv_heads * layer.head_dim; }
  /// head_dim / 2 values theta^(-2i / head_dim) in fp64, rounded to fp32; 0 where a pair stays.
  [[nodiscard]] std::vector<float> frequencies(bool sliding, int32_t head_dim) const;
};

/// Throws Error(unsupported) that names every field that is missing, malformed or not served.
Config parse_config(const nlohmann::json& config);

}  // namespace tensorfold::families::gemma4
