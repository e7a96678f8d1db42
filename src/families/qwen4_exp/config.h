// What config.json of a Qwen3.8 Flash Next checkpoint means (specs: Flash Next, 1).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "backend/cache.h"
#include "families/rotary_fields.h"

namespace tensorfold::families::qwen4_exp {

/// The layer with a hashed n-gram embedding (PLE), and what its table looks like.
struct NgramConfig {
  int32_t layer = 0;
  int32_t longest = 0;          ///< tokens of the longest n-gram
  int32_t heads_per_order = 0;  ///< for each n from 2 on
  int32_t width = 0;            ///< of all heads together
  int64_t vocabulary_base = 0;  ///< heads have the primes from here on as sizes
  int64_t row_multiple = 1;     ///< the rows of all heads are padded to a multiple of this
  int32_t shards = 1;
  int64_t seed = 0;
  int32_t end_token = 0;  ///< no n-gram reaches over it
  int32_t kernel = 0;     ///< of the branch's convolution, whose dilation is `longest`

  [[nodiscard]] int32_t heads() const { return (longest - 1) * heads_per_order; }
  [[nodiscard]] int32_t row_width() const { return width / heads(); }
};

struct Config {
  int32_t hidden = 0;
  int32_t vocabulary = 0;
  int32_t native_context = 0;
  float epsilon = 0.0F;
  bool tied = false;
  int32_t mtp_layers = 0;     ///< that the config declares
  bool mtp = false;           ///< an MTP head of one sparse layer
  std::vector<bool> attends;  ///< one a layer: sparse attention, else gated delta

  // Hyper-connections.
  int32_t streams = 0;
  int32_t rank = 0;

  // Sparse attention and its indexer.
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  RotaryFields rotary;
  int32_t index_heads = 0;
  int32_t index_dim = 0;
  int32_t index_block = 0;   ///< keys that are pooled
  int32_t index_chosen = 0;  ///< blocks a row reads

  backend::GatedDeltaShape delta;
  bool sigmoid_gate = true;

  // Experts.
  int32_t experts = 0;
  int32_t chosen = 0;
  int32_t expert_width = 0;
  int32_t shared_width = 0;
  bool normalise = true;

  std::optional<NgramConfig> ngram;

  [[nodiscard]] int64_t stream_width() const { return 1LL * streams * hidden; }
  [[nodiscard]] int64_t query_width() const { return 1LL * heads * head_dim; }
  [[nodiscard]] int64_t kv_width() const { return 1LL * kv_heads * head_dim; }
  /// Outputs of the indexer's product: query heads, then one key.
  [[nodiscard]] int64_t index_width() const { return 1LL * (index_heads + 1) * index_dim; }
  /// Outputs of a sparse layer's first product: queries with their gates | keys | values | indexer.
  [[nodiscard]] int64_t attention_width() const { return 2 * query_width() + 2 * kv_width() + index_width(); }
};

/// Throws Error(unsupported) that names every field that is missing, malformed or not served.
Config parse_config(const nlohmann::json& config);

}  // namespace tensorfold::families::qwen4_exp
