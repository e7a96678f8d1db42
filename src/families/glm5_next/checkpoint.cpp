#include "families/glm5_next/checkpoint.h"

#include <algorithm>

#include "families/tensor_list.h"

namespace tensorfold::families::glm5_next {
namespace {

bool any_contains(std::span<const std::string> names, std::string_view part) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.find(part) != std::string::npos; });
}

bool any_starts_with(std::span<const std::string> names, const std::string& prefix) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

void list_streams(TensorList& list, const Config& config, const Layout& layout) {
  for (const char* site : {"attn", "ffn"}) {
    list.router(layout.streams(site, "fn"), config.stream_weights(), config.residual());
    list.vector(layout.streams(site, "base"), {config.stream_weights()}, 0.0F, 0.5F);
    list.vector(layout.streams(site, "scale"), {3}, 1.0F, 0.1F);
  }
}

void list_delta(TensorList& list, const Config& config, const Layout& layout) {
  const backend::KimiDeltaShape& delta = config.delta;
  const std::string mixer = "self_attn.";
  for (const char* part : {"q_proj", "k_proj", "v_proj"}) list.linear(mixer + part, delta.values(), config.hidden);
  const std::vector<std::string> convolutions = convolution_names(layout, "");
  for (const std::string& name : convolutions) {
    const int64_t channels = delta.channels() / static_cast<int64_t>(convolutions.size());
    list.vector(name, {channels, 1, delta.kernel}, 0.0F, 0.5F);
  }
  const std::string decay = layout.decay();
  list.linear(decay + "f_a_proj", delta.dim, config.hidden);
  list.linear(decay + "f_b_proj", delta.values(), delta.dim);
  list.vector(layout.exponentiated ? mixer + "A" : decay + "A_log", {delta.heads}, 0.5F, 0.4F);
  list.vector(decay + "dt_bias", {delta.values()}, -2.0F, 2.0F);
  list.linear(mixer + "g_a_proj", delta.dim, config.hidden);
  list.linear(mixer + "g_b_proj", delta.values(), delta.dim);
  list.linear(mixer + "b_proj", delta.heads, config.hidden);
  list.norm(mixer + "o_norm", delta.dim);
  list.linear(mixer + "o_proj", config.hidden, delta.values());
}

void list_attention(TensorList& list, const Config& config, const Layout& layout) {
  const std::string mixer = "self_attn.";
  list.linear(mixer + "q_a_proj", config.query_rank, config.hidden);
  list.norm(mixer + "q_a_layernorm", config.query_rank);
  list.linear(mixer + "q_b_proj", 1LL * config.heads * config.key_dim, config.query_rank);
  list.linear(mixer + "kv_a_proj_with_mqa", config.latent, config.hidden);
  list.norm(mixer + "kv_a_layernorm", config.latent);
  if (layout.renamed) {
    list.experts(mixer + "embed_q", config.heads, config.heads, config.latent, config.key_dim);
    list.experts(mixer + "unembed_out", config.heads, config.heads, config.value_dim, config.latent);
  } else {
    list.linear(mixer + "kv_b_proj", 1LL * config.heads * (config.key_dim + config.value_dim), config.latent);
  }
  list.linear(mixer + "o_proj", config.hidden, 1LL * config.heads * config.value_dim);
  const std::string index = mixer + "indexer.";
  list.linear(index + "wk", config.index_dim, config.hidden);
  list.linear(index + "wq_b", 1LL * config.index_heads * config.index_dim, config.query_rank);
  list.linear(index + "weights_proj", config.index_heads, config.hidden);
  list.norm(index + "k_norm", config.index_dim);
  list.vector(index + "k_norm.bias", {config.index_dim}, 0.0F, 0.1F);
  list.router(index + "index_kpool_compress_gate", config.index_dim, config.hidden);
  list.vector(index + "index_kpool_compress_ape", {config.block, config.index_dim}, 0.0F, 0.5F);
}

void list_mlp(TensorList& list, const Config& config, const Layout& layout, bool sparse) {
  if (!sparse) {
    list.linear("mlp.gate_proj", config.intermediate, config.hidden);
    list.linear("mlp.up_proj", config.intermediate, config.hidden);
    list.linear("mlp.down_proj", config.hidden, config.intermediate);
    return;
  }
  list.router("mlp.gate", config.experts, config.hidden);
  list.vector("mlp.gate.e_score_correction_bias", {config.experts}, 0.0F, 0.1F);
  const ExpertModules modules = expert_modules(config, layout, "");
  const auto add = [&](const std::string& module, int64_t outputs, int64_t inputs) {
    layout.renamed ? list.experts(module, config.experts, config.chosen_experts, outputs, inputs)
                   : list.expert(module, config.experts, config.chosen_experts, outputs, inputs);
  };
  for (const std::string& module : modules.in) add(module, config.expert_width, config.hidden);
  for (const std::string& module : modules.out) add(module, config.hidden, config.expert_width);
  list.linear("mlp.shared_experts.gate_proj", config.shared_width, config.hidden);
  list.linear("mlp.shared_experts.up_proj", config.shared_width, config.hidden);
  list.linear("mlp.shared_experts.down_proj", config.hidden, config.shared_width);
}

void list_norms(TensorList& list, const Config& config) {
  list.norm("input_layernorm", config.hidden);
  list.norm("post_attention_layernorm", config.hidden);
}

void list_mtp(std::vector<TensorSpec>& specs, const Config& config, const Layout& layout) {
  TensorList joint(specs, *layout.mtp);
  joint.norm("enorm", config.hidden);
  joint.norm("hnorm", config.hidden);
  joint.linear("eh_proj", config.hidden, 2LL * config.hidden);
  joint.norm(layout.mtp_norm(), config.hidden);
  TensorList layer(specs, layout.mtp_layer);
  list_norms(layer, config);
  list_attention(layer, config, layout);
  list_mlp(layer, config, layout, true);
}

}  // namespace

Layout find_layout(const Config& config, std::span<const std::string> names) {
  Layout layout;
  const std::string extra = "layers." + std::to_string(config.layers.size()) + ".";
  if (names.empty()) {
    layout.mtp = layout.mtp_layer = layout.root + extra;
    return layout;
  }
  for (const char* root : {"model.", "language_model.", "language_model.model.", "model.language_model."}) {
    if (any_starts_with(names, std::string(root) + "layers.")) layout.root = root;
  }
  if (any_starts_with(names, "language_model.lm_head.")) layout.head = "language_model.lm_head";
  for (const char* part : {".attn_hc.", ".forget_gate.", ".embed_q.", ".mtp.0."})
    layout.renamed = layout.renamed || any_contains(names, part);
  layout.exponentiated =
      std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.ends_with(".self_attn.A"); });
  if (!layout.renamed) {
    if (any_starts_with(names, layout.root + extra)) layout.mtp = layout.mtp_layer = layout.root + extra;
    return layout;
  }
  for (const std::string& prefix :
       {std::string("mtp.0."), std::string("language_model.mtp.0."), layout.root + "mtp.0."}) {
    if (!any_starts_with(names, prefix)) continue;
    layout.mtp = prefix;
    layout.mtp_layer = prefix + "block.";
  }
  return layout;
}

ExpertModules expert_modules(const Config& config, const Layout& layout, const std::string& layer_prefix) {
  const std::string mlp = layer_prefix + "mlp.";
  if (layout.renamed) {
    return {{mlp + "switch_mlp.gate_proj", mlp + "switch_mlp.up_proj"}, {mlp + "switch_mlp.down_proj"}};
  }
  ExpertModules modules;
  for (const char* part : {".gate_proj", ".up_proj"}) {
    for (int32_t expert = 0; expert < config.experts; ++expert)
      modules.in.push_back(mlp + "experts." + std::to_string(expert) + part);
  }
  for (int32_t expert = 0; expert < config.experts; ++expert)
    modules.out.push_back(mlp + "experts." + std::to_string(expert) + ".down_proj");
  return modules;
}

std::vector<std::string> convolution_names(const Layout& layout, const std::string& layer_prefix) {
  const std::string mixer = layer_prefix + "self_attn.";
  if (layout.renamed) return {mixer + "conv1d.weight"};
  return {mixer + "q_conv1d.weight", mixer + "k_conv1d.weight", mixer + "v_conv1d.weight"};
}

std::vector<TensorSpec> list_tensors(const Config& config, const Layout& layout) {
  std::vector<TensorSpec> specs;
  specs.push_back({layout.root + "embed_tokens", TensorRole::embedding, {config.vocabulary, config.hidden}});
  for (size_t index = 0; index < config.layers.size(); ++index) {
    TensorList list(specs, layout.layer(index));
    list_norms(list, config);
    list_streams(list, config, layout);
    config.layers[index].attends ? list_attention(list, config, layout) : list_delta(list, config, layout);
    list_mlp(list, config, layout, config.layers[index].sparse);
  }
  specs.push_back({layout.root + "norm.weight", TensorRole::vector, {config.hidden}});
  specs.push_back({layout.head, TensorRole::linear, {config.vocabulary, config.hidden}});
  const size_t first = specs.size();
  if (config.mtp && layout.mtp) list_mtp(specs, config, layout);
  for (size_t i = first; i < specs.size(); ++i) specs[i].draft_head = true;
  return specs;
}

std::vector<SkippedTensors> skipped_tensors() {
  const std::string vision = "the vision tower is skipped: text only";
  return {{"model.visual.", vision}, {"visual.", vision}, {"vision_tower.", vision}};
}

}  // namespace tensorfold::families::glm5_next
