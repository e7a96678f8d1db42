#include "families/qwen4_exp/config.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "backend/plan.h"
#include "families/config_fields.h"
#include "families/delta_mixer.h"
#include "format/config.h"

namespace tensorfold::families::qwen4_exp {
namespace {

constexpr int32_t kMostWidth = 1 << 20;

/// Every spelling but linear_attention is the sparse attention.
void read_layers(ConfigFields& fields, Config& config) {
  const int32_t layers = fields.integer("num_hidden_layers", 1, 1024);
  const int32_t interval = fields.integer("full_attention_interval", 1, 1024, 4);
  const std::vector<std::string> types = fields.texts("layer_types");
  for (int32_t layer = 0; layer < layers; ++layer) config.attends.push_back((layer + 1) % interval == 0);
  if (types.empty()) return;
  if (types.size() != config.attends.size()) {
    fields.problems().add("layer_types names {} layers, num_hidden_layers {}", types.size(), layers);
    return;
  }
  for (size_t layer = 0; layer < types.size(); ++layer) {
    const std::string& type = types[layer];
    config.attends[layer] = type != "linear_attention";
    const bool known = type == "linear_attention" || type == "full_attention" || type == "qwen_sparse_attention" ||
                       type == "deepseek_sparse_attention" || type == "hybrid_indexed";
    if (!known) fields.problems().add("layer_types has {}, which is not served", format::printable(type));
    if (!known) return;
  }
}

void read_attention(ConfigFields& fields, Config& config) {
  config.heads = fields.integer("num_attention_heads", 1, 4096);
  config.kv_heads = fields.integer("num_key_value_heads", 1, 4096);
  config.head_dim = fields.integer("head_dim", 1, 4096);
  fields.serve("attention_bias", !fields.boolean("attention_bias", false));
  if (config.heads % config.kv_heads != 0) fields.problems().add("num_key_value_heads does not divide the heads");
  config.rotary = read_rotary(fields, config.head_dim);
  config.index_heads = fields.integer("indexer_n_heads", 1, 1024, 4);
  config.index_dim = fields.integer("indexer_head_dim", 1, 4096, 128);
  config.index_block = fields.integer("indexer_compress_ratio", 1, 64, 4);
  fields.serve("indexer_kv_heads", fields.integer("indexer_kv_heads", 1, 1024, 1) == 1);
  const int32_t budget = fields.integer("indexer_budget", 1, 1 << 24, 2048);
  fields.serve("indexer_budget", budget % config.index_block == 0);
  config.index_chosen = budget / config.index_block;
  if (config.rotary.width > config.index_dim)
    fields.problems().add("the rotary width {} is more than indexer_head_dim", config.rotary.width);
}

void read_experts(ConfigFields& fields, Config& config) {
  config.experts = fields.integer("num_experts", 1, 1 << 16);
  config.chosen = fields.integer("num_experts_per_tok", 1, 1 << 10);
  config.expert_width = fields.integer("moe_intermediate_size", 1, kMostWidth);
  config.shared_width = fields.integer("shared_expert_intermediate_size", 1, kMostWidth);
  config.normalise = fields.boolean("norm_topk_prob", true);
  if (config.chosen > config.experts) fields.problems().add("num_experts_per_tok is more than num_experts");
}

/// The reset token is the first of eos_token_id, of the text config where it has one.
int32_t read_end_token(ConfigFields& fields, const nlohmann::json& text, const nlohmann::json& root, int32_t most) {
  const nlohmann::json* ids = nullptr;
  for (const nlohmann::json* object : {&root, &text}) {
    const auto found = object->find("eos_token_id");
    if (found != object->end() && !found->is_null()) ids = &*found;
  }
  if (ids != nullptr && ids->is_array() && !ids->empty()) ids = &ids->front();
  if (ids != nullptr && ids->is_number_integer() && *ids >= 0 && *ids < most) return ids->get<int32_t>();
  fields.problems().add("eos_token_id, which the n-gram embedding needs, is {}",
                        ids == nullptr ? std::string("missing") : format::printable_json(*ids));
  return 0;
}

/// ple_layer_ids counts from one. No list: no n-gram embedding.
void read_ngram(ConfigFields& fields, const nlohmann::json& text, const nlohmann::json& root, Config& config) {
  const auto ids = text.find("ple_layer_ids");
  if (ids == text.end() || ids->is_null() || (ids->is_array() && ids->empty())) return;
  const bool one = ids->is_array() && ids->size() == 1 && ids->front().is_number_integer();
  fields.serve("ple_layer_ids",
               one && ids->front() >= 1 && ids->front() <= static_cast<int64_t>(config.attends.size()));
  NgramConfig ngram;
  ngram.layer = one ? ids->front().get<int32_t>() - 1 : 0;
  ngram.longest = fields.integer("ngram_size", 2, backend::kHistoryTokens + 1, 3);
  ngram.heads_per_order = fields.integer("heads_per_ngram", 1, 1024, 8);
  ngram.width = fields.integer("ple_embed_dim", 1, kMostWidth);
  ngram.vocabulary_base = fields.integer("ngram_vocab_size_base", 2, 1 << 30, 20'000'000);
  ngram.row_multiple = fields.integer("make_ngram_vocab_size_divisible_by", 1, 1 << 20, 128);
  ngram.shards = fields.integer("split_ngram_parts", 1, 1 << 16, 128);
  ngram.seed = fields.integer("seed", 0, std::numeric_limits<int32_t>::max(), 1234);
  ngram.kernel = fields.integer("ple_conv_kernel_size", 2, 16, 4);
  ngram.end_token = read_end_token(fields, text, root, config.vocabulary);
  if (ngram.width % ngram.heads() != 0)
    fields.problems().add("ple_embed_dim is no multiple of its {} heads", ngram.heads());
  config.ngram = ngram;
}

void read_mtp(ConfigFields& fields, Config& config) {
  config.mtp_layers = fields.integer("mtp_num_hidden_layers", 0, 64, 0);
  config.mtp = config.mtp_layers == 1;
  fields.serve("mtp_use_dedicated_embeddings", !fields.boolean("mtp_use_dedicated_embeddings", false));
  const nlohmann::json* nested = fields.object("mtp");
  if (nested == nullptr) return;
  ConfigFields mtp(*nested);
  for (const std::string& type : mtp.texts("layer_types")) mtp.serve("layer_types", type != "linear_attention");
  mtp.serve("rope_theta", mtp.number("rope_theta", 1.0, 1e12, config.rotary.theta) == config.rotary.theta);
  for (const std::string& problem : mtp.problems().all()) fields.problems().add("mtp: {}", problem);
}

}  // namespace

Config parse_config(const nlohmann::json& root) {
  const nlohmann::json& text = format::text_config(root);
  ConfigFields fields(text);
  Config config;
  config.hidden = fields.integer("hidden_size", 1, kMostWidth);
  config.vocabulary = fields.integer("vocab_size", 1, 1 << 24);
  config.native_context = fields.integer("max_position_embeddings", 1, 1 << 30);
  config.epsilon = static_cast<float>(fields.number("rms_norm_eps", 0.0, 1.0, 1e-6));
  config.tied = fields.boolean("tie_word_embeddings", ConfigFields(root).boolean("tie_word_embeddings", false));
  fields.serve("hidden_act", fields.text("hidden_act", "silu") == "silu");
  config.streams = fields.integer("hc_count", 1, 64, 4);
  config.rank = fields.integer("hc_lowrank", 1, kMostWidth, 320);
  read_layers(fields, config);
  read_attention(fields, config);
  config.delta = read_delta(fields);
  const std::string gate = fields.text("output_gate_type", "sigmoid");
  fields.serve("output_gate_type", gate == "sigmoid" || gate == "silu" || gate == "swish");
  config.sigmoid_gate = gate == "sigmoid";
  read_experts(fields, config);
  read_ngram(fields, text, root, config);
  read_mtp(fields, config);
  fields.finish();
  return config;
}

}  // namespace tensorfold::families::qwen4_exp
