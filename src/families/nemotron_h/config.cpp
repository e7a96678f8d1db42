#include "families/nemotron_h/config.h"

#include <limits>
#include <optional>

#include "families/config_fields.h"
#include "format/config.h"

namespace tensorfold::families::nemotron_h {
namespace {

using nlohmann::json;

constexpr int32_t kMostWidth = 1 << 20;

std::optional<LayerKind> kind_of(const std::string& name) {
  if (name == "mamba" || name == "linear_attention" || name == "M") return LayerKind::mamba;
  if (name == "attention" || name == "full_attention" || name == "*") return LayerKind::attention;
  if (name == "moe" || name == "E") return LayerKind::experts;
  return std::nullopt;
}

/// The layers' names: a list, or a string with one letter a layer.
std::vector<std::string> layer_names(const json& value) {
  std::vector<std::string> names;
  if (value.is_string()) {
    for (const char letter : value.get<std::string>()) names.emplace_back(1, letter);
  }
  for (const json& element : value.is_array() ? value : json::array()) {
    names.push_back(element.is_string() ? element.get<std::string>() : format::printable_json(element));
  }
  return names;
}

/// layers_block_type (3.5) or hybrid_override_pattern (before).
void read_layers(const json& object, ConfigFields& fields, Config& config) {
  for (const char* field : {"layers_block_type", "hybrid_override_pattern"}) {
    const auto found = object.find(field);
    if (found == object.end() || found->is_null() || !config.layers.empty()) continue;
    for (const std::string& name : layer_names(*found)) {
      const auto kind = kind_of(name);
      if (!kind) fields.problems().add("{} has the layer {}, which is not served", field, format::printable(name));
      config.layers.push_back(kind.value_or(LayerKind::mamba));
    }
  }
  if (config.layers.empty()) fields.problems().add("layers_block_type is missing");
  const auto layers = static_cast<int32_t>(config.layers.size());
  if (fields.integer("num_hidden_layers", 1, 4096, layers) != layers) {
    fields.problems().add("num_hidden_layers is not the {} layers of layers_block_type", layers);
  }
}

/// [least, most]; infinity is absent, or {"__float__": "Infinity"} as transformers writes it.
void read_step_limit(const json& object, ConfigFields& fields, Config& config) {
  config.most_step = std::numeric_limits<float>::infinity();
  const auto found = object.find("time_step_limit");
  if (found == object.end() || found->is_null()) return;
  const auto bound = [&](size_t index, float fallback) {
    const json& value = (*found)[index];
    if (value.is_number()) return value.get<float>();
    if (!value.is_object() || value.value("__float__", json()) != "Infinity") {
      fields.problems().add("time_step_limit is {}, not two numbers", format::printable_json(*found));
    }
    return fallback;
  };
  if (!found->is_array() || found->size() != 2) {
    fields.problems().add("time_step_limit is {}, not two numbers", format::printable_json(*found));
    return;
  }
  config.least_step = bound(0, 0.0F);
  config.most_step = bound(1, std::numeric_limits<float>::infinity());
  if (!(config.least_step >= 0.0F && config.least_step <= config.most_step)) {
    fields.problems().add("time_step_limit is {}, no range above zero", format::printable_json(*found));
  }
}

void read_mamba(const json& object, ConfigFields& fields, Config& config) {
  config.mamba.heads = fields.integer("mamba_num_heads", 1, 4096);
  config.mamba.head_dim = fields.integer("mamba_head_dim", 1, 4096);
  config.mamba.state = fields.integer("ssm_state_size", 1, 4096);
  config.mamba.groups = fields.integer("n_groups", 1, 4096);
  config.mamba.kernel = fields.integer("conv_kernel", 2, 16, 4);
  if (config.mamba.heads % config.mamba.groups != 0) fields.problems().add("n_groups does not divide mamba_num_heads");
  fields.serve("mamba_hidden_act", fields.text("mamba_hidden_act", "silu") == "silu");
  fields.serve("use_conv_bias", fields.boolean("use_conv_bias", true));
  fields.serve("use_bias", !fields.boolean("use_bias", false));
  fields.serve("mamba_proj_bias", !fields.boolean("mamba_proj_bias", false));
  read_step_limit(object, fields, config);
}

void read_attention(const json& object, ConfigFields& fields, Config& config) {
  config.heads = fields.integer("num_attention_heads", 1, 4096);
  config.kv_heads = fields.integer("num_key_value_heads", 1, 4096);
  config.head_dim = fields.integer("head_dim", 1, 4096, config.hidden / config.heads);
  if (config.heads % config.kv_heads != 0) fields.problems().add("num_key_value_heads does not divide the heads");
  fields.serve("attention_bias", !fields.boolean("attention_bias", false));
  const auto window = object.find("sliding_window");
  fields.serve("sliding_window", window == object.end() || window->is_null());
}

void read_experts(const json& object, ConfigFields& fields, Config& config) {
  config.experts = fields.integer("n_routed_experts", 1, 1 << 16);
  config.chosen = fields.integer("num_experts_per_tok", 1, config.experts);
  config.expert_width = fields.integer("moe_intermediate_size", 1, kMostWidth);
  const int32_t shared = fields.integer("n_shared_experts", 1, 64, 1);
  config.shared_width =
      fields.integer("moe_shared_expert_intermediate_size", 1, kMostWidth, shared * config.expert_width);
  config.normalise = fields.boolean("norm_topk_prob", true);
  config.routed_factor = static_cast<float>(fields.number("routed_scaling_factor", 0.0, 1e6, 1.0));
  const auto latent = object.find("moe_latent_size");
  fields.serve("moe_latent_size", latent == object.end() || latent->is_null());
  fields.serve("n_group", fields.integer("n_group", 1, 1 << 16, 1) == 1);
  fields.serve("mlp_hidden_act", fields.text("mlp_hidden_act", "relu2") == "relu2");
  fields.serve("mlp_bias", !fields.boolean("mlp_bias", false));
}

void read_mtp(const json& object, ConfigFields& fields, Config& config) {
  config.mtp_layers = fields.integer("num_nextn_predict_layers", 0, 64, 0);
  config.mtp = config.mtp_layers == 1;
  const auto found = object.find("mtp_layers_block_type");
  if (!config.mtp || found == object.end() || found->is_null()) return;
  const std::vector<std::string> names = layer_names(*found);
  config.mtp =
      names.size() == 2 && kind_of(names[0]) == LayerKind::attention && kind_of(names[1]) == LayerKind::experts;
}

}  // namespace

Config parse_config(const json& root) {
  const json& object = format::text_config(root);
  ConfigFields fields(object);
  Config config;
  config.hidden = fields.integer("hidden_size", 1, kMostWidth);
  config.vocabulary = fields.integer("vocab_size", 1, 1 << 24);
  config.native_context = fields.integer("max_position_embeddings", 1, 1 << 30);
  config.epsilon =
      static_cast<float>(fields.number("layer_norm_epsilon", 0.0, 1.0, fields.number("norm_eps", 0.0, 1.0, 1e-5)));
  config.tied = fields.boolean("tie_word_embeddings", false);
  read_layers(object, fields, config);
  read_mamba(object, fields, config);
  read_attention(object, fields, config);
  read_experts(object, fields, config);
  read_mtp(object, fields, config);
  fields.finish();
  return config;
}

}  // namespace tensorfold::families::nemotron_h
