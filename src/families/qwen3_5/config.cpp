#include "families/qwen3_5/config.h"

#include "families/config_fields.h"
#include "families/delta_mixer.h"
#include "format/config.h"

namespace tensorfold::families::qwen3_5 {
namespace {

constexpr int32_t kMostWidth = 1 << 20;

void read_layers(ConfigFields& fields, Config& config) {
  config.layers = fields.integer("num_hidden_layers", 1, 1024);
  const int32_t interval = fields.integer("full_attention_interval", 1, 1024, 4);
  const std::vector<std::string> types = fields.texts("layer_types");
  for (int32_t layer = 0; layer < config.layers; ++layer) config.attends.push_back((layer + 1) % interval == 0);
  if (types.empty()) return;
  if (types.size() != config.attends.size()) {
    fields.problems().add("layer_types names {} layers, num_hidden_layers {}", types.size(), config.layers);
    return;
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    config.attends[layer] = types[layer] == "full_attention";
    if (!config.attends[layer] && types[layer] != "linear_attention") {
      fields.problems().add("layer_types has {}, which is not served", format::printable(types[layer]));
      return;
    }
  }
}

void read_attention(ConfigFields& fields, Config& config) {
  config.heads = fields.integer("num_attention_heads", 1, 4096);
  config.kv_heads = fields.integer("num_key_value_heads", 1, 4096);
  config.head_dim = fields.integer("head_dim", 1, 4096);
  config.gated = fields.boolean("attn_output_gate", true);
  fields.serve("attention_bias", !fields.boolean("attention_bias", false));
  if (config.heads % config.kv_heads != 0) fields.problems().add("num_key_value_heads does not divide the heads");
}

}  // namespace

Config parse_config(const nlohmann::json& root) {
  ConfigFields fields(format::text_config(root));
  Config config;
  config.hidden = fields.integer("hidden_size", 1, kMostWidth);
  config.intermediate = fields.integer("intermediate_size", 1, kMostWidth);
  config.vocabulary = fields.integer("vocab_size", 1, 1 << 24);
  config.native_context = fields.integer("max_position_embeddings", 1, 1 << 30);
  config.epsilon = static_cast<float>(fields.number("rms_norm_eps", 0.0, 1.0, 1e-6));
  config.tied = fields.boolean("tie_word_embeddings", ConfigFields(root).boolean("tie_word_embeddings", false));
  config.mtp_layers = fields.integer("mtp_num_hidden_layers", 0, 64, 0);
  fields.serve("hidden_act", fields.text("hidden_act", "silu") == "silu");
  fields.serve("mtp_use_dedicated_embeddings", !fields.boolean("mtp_use_dedicated_embeddings", false));
  read_layers(fields, config);
  read_attention(fields, config);
  config.rotary = read_rotary(fields, config.head_dim);
  config.delta = read_delta(fields);
  fields.finish();
  return config;
}

}  // namespace tensorfold::families::qwen3_5
