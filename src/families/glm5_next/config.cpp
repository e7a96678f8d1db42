#include "families/glm5_next/config.h"

#include <algorithm>

#include "families/config_fields.h"
#include "format/config.h"

namespace tensorfold::families::glm5_next {
namespace {

using nlohmann::json;

constexpr int32_t kMostWidth = 1 << 20;

/// Calls body(layer, name) for the names of a list of layers, if it is there and has one a layer.
template <typename Body>
bool each_layer(ConfigFields& fields, const char* name, const Config& config, Body body) {
  const std::vector<std::string> names = fields.texts(name);
  if (names.empty()) return false;
  if (names.size() != config.layers.size()) {
    fields.problems().add("{} names {} layers, num_hidden_layers {}", name, names.size(), config.layers.size());
    return true;
  }
  for (size_t layer = 0; layer < names.size(); ++layer) {
    if (body(layer, names[layer])) continue;
    fields.problems().add("{} has {}, which is not served", name, format::printable(names[layer]));
    break;
  }
  return true;
}

void read_layers(ConfigFields& fields, Config& config) {
  config.layers.resize(static_cast<size_t>(fields.integer("num_hidden_layers", 1, 1024)));
  const bool typed = each_layer(fields, "layer_types", config, [&](size_t layer, const std::string& type) {
    config.layers[layer].attends = type != "linear_attention";
    return type == "linear_attention" || type == "deepseek_sparse_attention" || type == "full_attention";
  });
  const bool mixed = each_layer(fields, "mlp_layer_types", config, [&](size_t layer, const std::string& type) {
    config.layers[layer].sparse = type == "sparse";
    return type == "sparse" || type == "dense";
  });
  // Without them: every fourth layer attends; the first ones are dense.
  const auto dense = static_cast<size_t>(fields.integer("first_k_dense_replace", 0, 1024, 3));
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    if (!typed) config.layers[layer].attends = layer % 4 == 3;
    if (!mixed) config.layers[layer].sparse = layer >= dense;
  }
}

/// linear_attn_config, else the flat names that transformers writes.
void read_delta(ConfigFields& fields, Config& config) {
  if (const json* nested = fields.object("linear_attn_config")) {
    ConfigFields inner(*nested);
    config.delta.heads = inner.integer("num_heads", 1, 4096);
    config.delta.dim = inner.integer("head_dim", 1, 4096);
    config.delta.kernel = inner.integer("short_conv_kernel_size", 2, 16, 4);
    config.lower_bound = static_cast<float>(
        inner.number("gate_lower_bound", -100.0, -1e-3, inner.number("lower_bound", -100.0, -1e-3, -5.0)));
    for (const std::string& problem : inner.problems().all()) fields.problems().add("linear_attn_config: {}", problem);
    return;
  }
  config.delta.heads = fields.integer("linear_num_heads", 1, 4096);
  config.delta.dim = fields.integer("linear_head_dim", 1, 4096);
  config.delta.kernel = fields.integer("linear_conv_kernel_dim", 2, 16, 4);
  config.lower_bound = static_cast<float>(fields.number("linear_lower_bound", -100.0, -1e-3, -5.0));
}

void read_attention(ConfigFields& fields, Config& config) {
  config.heads = fields.integer("num_attention_heads", 1, 4096);
  fields.serve("num_key_value_heads", fields.integer("num_key_value_heads", 1, 4096, config.heads) == config.heads);
  config.query_rank = fields.integer("q_lora_rank", 1, kMostWidth);
  config.latent = fields.integer("kv_lora_rank", 1, kMostWidth);
  config.key_dim = fields.integer("qk_nope_head_dim", 4, 4096);
  config.value_dim = fields.integer("v_head_dim", 4, 4096);
  fields.serve("qk_nope_head_dim", config.key_dim % 4 == 0);
  fields.serve("v_head_dim", config.value_dim % 4 == 0);
  fields.serve("qk_rope_head_dim", fields.integer("qk_rope_head_dim", 0, 4096, 0) == 0);
  fields.serve("mla_use_nope", fields.boolean("mla_use_nope", true));
  fields.serve("attention_bias", !fields.boolean("attention_bias", false));
}

void read_index(ConfigFields& fields, Config& config) {
  config.index_heads = fields.integer("index_n_heads", 1, 4096);
  config.index_dim = fields.integer("index_head_dim", 1, 4096);
  config.block = fields.integer("index_kpool", 1, 4096);
  const int32_t kept = fields.integer("index_topk", 1, 1 << 24);
  config.chosen = std::max(1, kept / config.block);
  if (kept % config.block != 0)
    fields.problems().add("index_topk {} is no multiple of index_kpool {}", kept, config.block);
  fields.serve("index_kpool_always_select_tail", fields.boolean("index_kpool_always_select_tail", true));
  each_layer(fields, "indexer_types", config, [](size_t, const std::string& type) { return type == "full"; });
}

void read_mlps(ConfigFields& fields, Config& config) {
  config.intermediate = fields.integer("intermediate_size", 1, kMostWidth);
  config.experts = fields.integer("n_routed_experts", 1, 1 << 16);
  config.chosen_experts = fields.integer("num_experts_per_tok", 1, config.experts);
  config.expert_width = fields.integer("moe_intermediate_size", 1, kMostWidth);
  config.shared_width = config.expert_width * fields.integer("n_shared_experts", 1, 64, 1);
  config.normalise = fields.boolean("norm_topk_prob", true);
  config.routed_factor = static_cast<float>(fields.number("routed_scaling_factor", 0.0, 1e6, 1.0));
  config.limit = static_cast<float>(fields.number("swiglu_limit", 0.0, 1e6, 0.0));
  fields.serve("n_group", fields.integer("n_group", 1, 1 << 16, 1) == 1);
  fields.serve("topk_group", fields.integer("topk_group", 1, 1 << 16, 1) == 1);
  fields.serve("scoring_func", fields.text("scoring_func", "sigmoid") == "sigmoid");
  fields.serve("topk_method", fields.text("topk_method", "noaux_tc") == "noaux_tc");
  fields.serve("hidden_act", fields.text("hidden_act", "silu") == "silu");
}

}  // namespace

Config parse_config(const json& root) {
  ConfigFields fields(format::text_config(root));
  Config config;
  config.hidden = fields.integer("hidden_size", 1, kMostWidth);
  config.vocabulary = fields.integer("vocab_size", 1, 1 << 24);
  config.native_context = fields.integer("max_position_embeddings", 1, 1 << 30);
  config.epsilon = static_cast<float>(fields.number("rms_norm_eps", 0.0, 1.0, 1e-5));
  const int32_t heads = fields.integer("num_nextn_predict_layers", 0, 64, 0);
  fields.serve("num_nextn_predict_layers", heads <= 1);
  config.mtp = heads == 1;
  fields.serve("tie_word_embeddings",
               !fields.boolean("tie_word_embeddings", ConfigFields(root).boolean("tie_word_embeddings", false)));
  fields.serve("mhc", fields.boolean("mhc", true));
  config.streams = fields.integer("hc_mult", 1, 8);
  config.stream_epsilon = static_cast<float>(fields.number("hc_eps", 0.0, 1.0, 1e-6));
  config.stream_rounds = fields.integer("hc_sinkhorn_iters", 1, 1000, 20);
  read_layers(fields, config);
  read_delta(fields, config);
  read_attention(fields, config);
  read_index(fields, config);
  read_mlps(fields, config);
  fields.finish();
  return config;
}

}  // namespace tensorfold::families::glm5_next
