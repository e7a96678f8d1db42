#include "families/qwen4_exp/checkpoint.h"

#include <algorithm>

#include "families/delta_mixer.h"
#include "families/qwen4_exp/ngram_rows.h"
#include "families/tensor_list.h"

namespace tensorfold::families::qwen4_exp {
namespace {

bool any_starts_with(std::span<const std::string> names, const std::string& prefix) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

ExpertSpelling find_spelling(std::span<const std::string> names, const std::string& prefix) {
  for (const std::string& name : names) {
    if (!name.starts_with(prefix)) continue;
    if (name.find(".mlp.switch_mlp.") != std::string::npos) return ExpertSpelling::switch_mlp;
    if (name.find(".mlp.experts.gate_up_proj") != std::string::npos) return ExpertSpelling::fused;
    if (name.find(".mlp.experts.0.") != std::string::npos) return ExpertSpelling::single;
  }
  return ExpertSpelling::switch_mlp;
}

void list_hyper_connection(TensorList& list, const Config& config, const std::string& module, bool injects) {
  const int64_t width = config.stream_width();
  list.norm(module + ".hc_norm", width);
  list.linear(module + ".input_mix_weight_down", config.rank, width);
  list.linear(module + ".input_mix_weight_up", width, config.rank);
  if (injects) list.linear(module + ".block_inject_weight", config.streams, width);
}

void list_attention(TensorList& list, const Config& config) {
  list.linear("self_attn.q_proj", 2 * config.query_width(), config.hidden);
  list.linear("self_attn.k_proj", config.kv_width(), config.hidden);
  list.linear("self_attn.v_proj", config.kv_width(), config.hidden);
  list.linear("self_attn.o_proj", config.hidden, config.query_width());
  list.norm("self_attn.q_norm", config.head_dim);
  list.norm("self_attn.k_norm", config.head_dim);
  list.linear("self_attn.indexer.index_qk_proj", config.index_width(), config.hidden);
  list.norm("self_attn.indexer.q_layernorm", config.index_dim);
  list.norm("self_attn.indexer.k_layernorm", config.index_dim);
}

void list_experts(TensorList& list, const Config& config, ExpertSpelling spelling) {
  const ExpertModules modules = expert_modules(config, "", spelling);
  const int64_t in = spelling == ExpertSpelling::fused ? 2LL * config.expert_width : config.expert_width;
  const auto add = [&](const std::string& module, int64_t outputs, int64_t inputs) {
    spelling == ExpertSpelling::single ? list.expert(module, config.experts, config.chosen, outputs, inputs)
                                       : list.experts(module, config.experts, config.chosen, outputs, inputs);
  };
  list.router("mlp.gate", config.experts, config.hidden);
  for (const std::string& module : modules.in) add(module, in, config.hidden);
  for (const std::string& module : modules.out) add(module, config.hidden, config.expert_width);
  list.linear("mlp.shared_expert.gate_proj", config.shared_width, config.hidden);
  list.linear("mlp.shared_expert.up_proj", config.shared_width, config.hidden);
  list.linear("mlp.shared_expert.down_proj", config.hidden, config.shared_width);
  list.linear("mlp.shared_expert_gate", 1, config.hidden);
}

void list_layer(TensorList& list, const Config& config, bool attends, ExpertSpelling spelling) {
  list_hyper_connection(list, config, "attn_hyper_connection", true);
  if (attends) {
    list_attention(list, config);
  } else {
    list_delta(list, config.delta, config.hidden);
  }
  list_hyper_connection(list, config, "mlp_hyper_connection", true);
  list_experts(list, config, spelling);
}

/// Read by position, never loaded: no part of what a row reads of the weights.
void list_ngram(std::vector<TensorSpec>& specs, const Config& config, const std::string& layer_prefix) {
  const NgramConfig& ngram = *config.ngram;
  TensorList list(specs, ngram_prefix(layer_prefix));
  list.linear("key_proj", config.stream_width(), ngram.width);
  list.linear("value_proj", config.hidden, ngram.width);
  for (const char* norm : {"norm_key", "norm_query", "norm_conv"}) list.norm(norm, config.stream_width());
  list.vector("conv1d.weight", {config.stream_width(), ngram.kernel, 1}, 0.0F, 0.5F);
  const std::vector<int64_t> rows = shard_rows(ngram);
  const std::vector<std::string> modules = ngram_modules(ngram, layer_prefix);
  for (size_t i = 0; i < modules.size(); ++i) {
    specs.push_back({modules[i], TensorRole::embedding, {rows[i], ngram.row_width()}});
    specs.back().stays_on_disk = true;
  }
  const std::string constants = ngram_prefix(layer_prefix) + "ple_embedding.";
  const auto heads = static_cast<int64_t>(ngram.heads());
  for (const auto& [name, count] : {std::pair{"layer_multipliers", static_cast<int64_t>(ngram.longest)},
                                    {"ngram_heads_vocab_sizes", heads},
                                    {"ngram_heads_offsets", heads}}) {
    specs.push_back({constants + name, TensorRole::integers, {count}, true});
  }
}

}  // namespace

Layout find_layout(std::span<const std::string> names) {
  Layout layout;
  if (names.empty()) return layout;
  if (!any_starts_with(names, "language_model.")) {
    layout.root = any_starts_with(names, "model.language_model.") ? "model.language_model." : "model.";
    layout.head = "lm_head";
  }
  layout.mtp.reset();
  for (const char* prefix : {"mtp.", "language_model.mtp.", "model.language_model.mtp.", "model.mtp."}) {
    if (!layout.mtp && any_starts_with(names, prefix)) layout.mtp = prefix;
  }
  layout.experts = find_spelling(names, layout.root + "layers.");
  if (layout.mtp) layout.mtp_experts = find_spelling(names, *layout.mtp);
  return layout;
}

ExpertModules expert_modules(const Config& config, const std::string& prefix, ExpertSpelling spelling) {
  const std::string mlp = prefix + "mlp.";
  if (spelling == ExpertSpelling::switch_mlp)
    return {{mlp + "switch_mlp.gate_proj", mlp + "switch_mlp.up_proj"}, {mlp + "switch_mlp.down_proj"}};
  if (spelling == ExpertSpelling::fused) return {{mlp + "experts.gate_up_proj"}, {mlp + "experts.down_proj"}};
  ExpertModules modules;
  for (const char* half : {".gate_proj", ".up_proj"}) {
    for (int32_t expert = 0; expert < config.experts; ++expert)
      modules.in.push_back(mlp + "experts." + std::to_string(expert) + half);
  }
  for (int32_t expert = 0; expert < config.experts; ++expert)
    modules.out.push_back(mlp + "experts." + std::to_string(expert) + ".down_proj");
  return modules;
}

std::string ngram_prefix(const std::string& layer_prefix) { return layer_prefix + "ple."; }

std::vector<std::string> ngram_modules(const NgramConfig& ngram, const std::string& layer_prefix) {
  std::vector<std::string> modules;
  for (int32_t shard = 0; shard < ngram.shards; ++shard)
    modules.push_back(ngram_prefix(layer_prefix) + "ple_embedding.ngram_embedding.shard_" + std::to_string(shard));
  return modules;
}

std::vector<TensorSpec> list_tensors(const Config& config, const Layout& layout) {
  std::vector<TensorSpec> specs;
  const TensorRole table = config.tied ? TensorRole::tied_embedding : TensorRole::embedding;
  specs.push_back({layout.root + "embed_tokens", table, {config.vocabulary, config.hidden}});
  for (size_t layer = 0; layer < config.attends.size(); ++layer) {
    TensorList list(specs, layout.layer(layer));
    list_layer(list, config, config.attends[layer], layout.experts);
    if (config.ngram && static_cast<size_t>(config.ngram->layer) == layer)
      list_ngram(specs, config, layout.layer(layer));
  }
  TensorList root(specs, layout.root);
  list_hyper_connection(root, config, "hyper_connection_mixer", false);
  if (!config.tied) specs.push_back({layout.head, TensorRole::linear, {config.vocabulary, config.hidden}});
  const size_t first = specs.size();
  if (config.mtp && layout.mtp) {
    TensorList mtp(specs, *layout.mtp);
    mtp.norm("pre_fc_norm_embedding", config.hidden);
    mtp.norm("pre_fc_norm_hidden", config.stream_width());
    mtp.linear("fc_embedding", config.hidden, config.hidden);
    mtp.linear("fc_hidden", config.hidden, config.hidden);
    list_hyper_connection(mtp, config, "hyper_connection_mixer", false);
    TensorList layer(specs, *layout.mtp + "layers.0.");
    list_layer(layer, config, true, layout.mtp_experts);
  }
  for (size_t i = first; i < specs.size(); ++i) specs[i].draft_head = true;
  return specs;
}

std::vector<SkippedTensors> skipped_tensors() {
  const std::string vision = "the vision tower is skipped: text only";
  const std::string mtp = "MTP tensors are skipped: config.json has no MTP head of one layer";
  return {{"vision_tower.", vision},
          {"model.visual.", vision},
          {"visual.", vision},
          {"mtp.", mtp},
          {"language_model.mtp.", mtp},
          {"model.language_model.mtp.", mtp},
          {"model.mtp.", mtp},
          // Only outside the inventory: a copy of a tied embedding.
          {"lm_head.", kUnusedHead},
          {"language_model.lm_head.", kUnusedHead}};
}

}  // namespace tensorfold::families::qwen4_exp
