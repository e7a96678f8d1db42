#include "families/gemma4/config.h"

#include <algorithm>
#include <cmath>

#include "families/config_fields.h"
#include "format/config.h"

namespace tensorfold::families::gemma4 {
namespace {

using nlohmann::json;

constexpr int32_t kMostWidth = 1 << 20;

/// layer_types, without it five sliding layers and a full one in turn; the last is full.
void read_layers(ConfigFields& fields, Config& config) {
  const int32_t count = fields.integer("num_hidden_layers", 1, 1024);
  const std::vector<std::string> types = fields.texts("layer_types");
  if (!types.empty() && static_cast<int32_t>(types.size()) != count) {
    fields.problems().add("layer_types names {} layers, num_hidden_layers {}", types.size(), count);
  }
  config.layers.resize(static_cast<size_t>(count));
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    config.layers[layer].sliding = (layer + 1) % 6 != 0 && layer + 1 < config.layers.size();
    if (layer >= types.size()) continue;
    config.layers[layer].sliding = types[layer] == "sliding_attention";
    if (config.layers[layer].sliding || types[layer] == "full_attention") continue;
    fields.problems().add("layer_types has {}, which is not served", format::printable(types[layer]));
  }
}

/// Overrides that transformers 5.17 writes: {"<layer>": {"head_dim": .., "num_key_value_heads": ..}}.
void read_overrides(const json& overrides, ConfigFields& fields, Config& config) {
  for (const auto& [name, value] : overrides.items()) {
    const size_t layer = name.find_first_not_of("0123456789") == std::string::npos && name.size() < 6 && !name.empty()
                             ? static_cast<size_t>(std::stoul(name))
                             : config.layers.size();
    if (layer >= config.layers.size() || !value.is_object()) {
      fields.problems().add("per_layer_config has the entry {}, which is no layer's", format::printable(name));
      continue;
    }
    ConfigFields own(value);
    LayerShape& shape = config.layers[layer];
    shape.head_dim = own.integer("head_dim", 2, 4096, shape.head_dim);
    shape.kv_heads = own.integer("num_key_value_heads", 1, 4096, shape.kv_heads);
    for (const auto& [field, unused] : value.items()) {
      if (field != "head_dim" && field != "num_key_value_heads") own.serve(field.c_str(), false);
    }
    for (const std::string& problem : own.problems().all())
      fields.problems().add("per_layer_config {}: {}", name, problem);
  }
}

void read_attention(ConfigFields& fields, Config& config) {
  config.heads = fields.integer("num_attention_heads", 1, 4096);
  const int32_t kv_heads = fields.integer("num_key_value_heads", 1, 4096);
  const int32_t head_dim = fields.integer("head_dim", 2, 4096, 256);
  const json* overrides = fields.object("per_layer_config");
  const int32_t full_dim = fields.integer("global_head_dim", 2, 4096, overrides != nullptr ? head_dim : 512);
  const int32_t full_kv_heads = fields.integer("num_global_key_value_heads", 1, 4096, kv_heads);
  const bool shared_values = fields.boolean("attention_k_eq_v", false);
  config.window = fields.integer("sliding_window", 1, 1 << 30, 1024);
  for (LayerShape& layer : config.layers) {
    layer.head_dim = layer.sliding ? head_dim : full_dim;
    layer.kv_heads = layer.sliding || !shared_values ? kv_heads : full_kv_heads;
    layer.own_values = layer.sliding || !shared_values;
  }
  if (overrides != nullptr) read_overrides(*overrides, fields, config);
  for (const LayerShape& layer : config.layers) {
    const auto same_kind = [&](const LayerShape& other) { return other.sliding == layer.sliding; };
    const LayerShape& first = *std::find_if(config.layers.begin(), config.layers.end(), same_kind);
    if (layer.head_dim != first.head_dim) fields.problems().add("layers of one kind have heads of different sizes");
    if (config.heads % layer.kv_heads == 0 && layer.head_dim % 2 == 0) continue;
    fields.problems().add("{} key heads of {} values do not suit {} query heads", layer.kv_heads, layer.head_dim,
                          config.heads);
    break;
  }
  fields.serve("attention_bias", !fields.boolean("attention_bias", false));
}

/// The rotary embedding of one kind of layers; `all` is rope_parameters, or empty.
RotaryKind read_rotary(ConfigFields& fields, const json& all, const char* kind, const RotaryKind& standard) {
  static const json none = json::object();
  ConfigFields kinds(all);
  const json* own = kinds.object(kind);
  for (const std::string& problem : kinds.problems().all()) fields.problems().add("rope_parameters: {}", problem);
  ConfigFields rope(own == nullptr ? none : *own);
  RotaryKind rotary;
  rotary.theta = rope.number("rope_theta", 1.0, 1e12, standard.theta);
  const std::string type = rope.text("rope_type", standard.active < 1.0 ? "proportional" : "default");
  rope.serve("rope_type", type == "default" || type == "proportional");
  const double share = rope.number("partial_rotary_factor", 0.0, 1.0, standard.active);
  rope.serve("partial_rotary_factor", type == "proportional" || share == 1.0);
  rotary.active = share;
  for (const std::string& problem : rope.problems().all())
    fields.problems().add("rope_parameters {}: {}", kind, problem);
  return rotary;
}

void read_experts(ConfigFields& fields, Config& config) {
  config.intermediate = fields.integer("intermediate_size", 1, kMostWidth);
  fields.serve("enable_moe_block", fields.boolean("enable_moe_block", false));
  config.experts = fields.integer("num_experts", 1, 1 << 16);
  config.chosen = fields.integer("top_k_experts", 1, config.experts);
  config.expert_width = fields.integer("moe_intermediate_size", 1, kMostWidth);
  fields.serve("hidden_activation", fields.text("hidden_activation", "gelu_pytorch_tanh") == "gelu_pytorch_tanh");
}

/// Features of other sizes of the family (spec 12).
void refuse_others(ConfigFields& fields) {
  fields.serve("hidden_size_per_layer_input", fields.integer("hidden_size_per_layer_input", 0, kMostWidth, 0) == 0);
  fields.serve("num_kv_shared_layers", fields.integer("num_kv_shared_layers", 0, 1024, 0) == 0);
  fields.serve("use_double_wide_mlp", !fields.boolean("use_double_wide_mlp", false));
  const std::string bidirectional = fields.text("use_bidirectional_attention", "vision");
  fields.serve("use_bidirectional_attention", bidirectional == "vision");
}

}  // namespace

float Config::embedding_factor() const { return static_cast<float>(std::sqrt(static_cast<double>(hidden))); }

std::vector<float> Config::frequencies(bool sliding, int32_t head_dim) const {
  const RotaryKind& rotary = sliding ? sliding_rotary : full_rotary;
  const auto active = static_cast<int32_t>(rotary.active * head_dim / 2.0);
  std::vector<float> values(static_cast<size_t>(head_dim / 2), 0.0F);
  for (int32_t i = 0; i < active; ++i)
    values[static_cast<size_t>(i)] = static_cast<float>(std::pow(rotary.theta, -2.0 * i / head_dim));
  return values;
}

Config parse_config(const json& root) {
  ConfigFields fields(format::text_config(root));
  Config config;
  config.hidden = fields.integer("hidden_size", 1, kMostWidth);
  config.vocabulary = fields.integer("vocab_size", 1, 1 << 24);
  config.native_context = fields.integer("max_position_embeddings", 1, 1 << 30);
  config.epsilon = static_cast<float>(fields.number("rms_norm_eps", 0.0, 1.0, 1e-6));
  config.soft_cap = static_cast<float>(fields.number("final_logit_softcapping", 0.0, 1e6, 0.0));
  fields.serve("tie_word_embeddings",
               fields.boolean("tie_word_embeddings", ConfigFields(root).boolean("tie_word_embeddings", true)));
  read_layers(fields, config);
  read_attention(fields, config);
  const json* rope = fields.object("rope_parameters");
  const json& kinds = rope != nullptr ? *rope : json::object();
  config.sliding_rotary = read_rotary(fields, kinds, "sliding_attention", {10000.0, 1.0});
  config.full_rotary = read_rotary(fields, kinds, "full_attention", {1e6, 0.25});
  read_experts(fields, config);
  refuse_others(fields);
  fields.finish();
  return config;
}

}  // namespace tensorfold::families::gemma4
