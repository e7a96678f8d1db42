#include "families/gemma4/checkpoint.h"

#include <algorithm>

#include "families/tensor_list.h"

namespace tensorfold::families::gemma4 {
namespace {

bool any_starts_with(std::span<const std::string> names, std::string_view prefix) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

void list_attention(TensorList& list, const Config& config, const LayerShape& layer) {
  list.norm("input_layernorm", config.hidden);
  list.linear("self_attn.q_proj", config.query_width(layer), config.hidden);
  list.linear("self_attn.k_proj", Config::kv_width(layer), config.hidden);
  if (layer.own_values) list.linear("self_attn.v_proj", Config::kv_width(layer), config.hidden);
  list.linear("self_attn.o_proj", config.hidden, config.query_width(layer));
  list.norm("self_attn.q_norm", layer.head_dim);
  list.norm("self_attn.k_norm", layer.head_dim);
  list.norm("post_attention_layernorm", config.hidden);
}

void list_feed_forward(TensorList& list, const Config& config, const Layout& layout) {
  for (const char* norm : {"pre_feedforward_layernorm", "pre_feedforward_layernorm_2", "post_feedforward_layernorm",
                           "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"}) {
    list.norm(norm, config.hidden);
  }
  list.linear("mlp.gate_proj", config.intermediate, config.hidden);
  list.linear("mlp.up_proj", config.intermediate, config.hidden);
  list.linear("mlp.down_proj", config.hidden, config.intermediate);
  list.linear("router.proj", config.experts, config.hidden);
  list.vector("router.scale", {config.hidden}, 1.0F, 0.1F);
  list.vector("router.per_expert_scale", {config.experts}, 1.0F, 0.1F);
  const ExpertModules modules = expert_modules(layout, "");
  const int64_t outputs = (layout.joined ? 2LL : 1LL) * config.expert_width;
  for (const std::string& module : modules.in) {
    list.experts(module, config.experts, config.chosen, outputs, config.hidden);
  }
  list.experts(modules.out, config.experts, config.chosen, config.hidden, config.expert_width);
  list.vector("layer_scalar", {1}, 1.0F, 0.1F);
}

}  // namespace

Layout find_layout(std::span<const std::string> names) {
  Layout layout;
  if (names.empty() || any_starts_with(names, "language_model.model.")) return layout;
  layout.root = any_starts_with(names, "model.language_model.") ? "model.language_model." : "model.";
  layout.joined = std::any_of(names.begin(), names.end(),
                              [](const std::string& name) { return name.ends_with(".experts.gate_up_proj"); });
  return layout;
}

ExpertModules expert_modules(const Layout& layout, const std::string& prefix) {
  if (layout.joined) return {{prefix + "experts.gate_up_proj"}, prefix + "experts.down_proj"};
  const std::string stacked = prefix + "experts.switch_glu.";
  return {{stacked + "gate_proj", stacked + "up_proj"}, stacked + "down_proj"};
}

std::vector<TensorSpec> list_tensors(const Config& config, const Layout& layout) {
  std::vector<TensorSpec> specs;
  specs.push_back({layout.root + "embed_tokens", TensorRole::tied_embedding, {config.vocabulary, config.hidden}});
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    TensorList list(specs, layout.layer(layer));
    list_attention(list, config, config.layers[layer]);
    list_feed_forward(list, config, layout);
  }
  specs.push_back({layout.root + "norm.weight", TensorRole::vector, {config.hidden}});
  return specs;
}

std::vector<SkippedTensors> skipped_tensors() {
  std::vector<SkippedTensors> skipped;
  for (const std::string prefix : {"", "model."}) {
    for (const char* tower : {"vision_tower.", "embed_vision.", "multi_modal_projector.", "vision_embedder."})
      skipped.push_back({prefix + tower, "the vision tower is skipped: text only"});
    for (const char* tower : {"audio_tower.", "embed_audio."})
      skipped.push_back({prefix + tower, "the audio tower is skipped: text only"});
  }
  for (const char* prefix : {"mtp", "language_model.mtp", "model.mtp"})
    skipped.push_back({prefix, "MTP tensors are skipped: this family has no MTP head here"});
  // Only outside the inventory: a copy of the tied embedding.
  skipped.push_back({"lm_head.", kUnusedHead});
  skipped.push_back({"language_model.lm_head.", kUnusedHead});
  return skipped;
}

}  // namespace tensorfold::families::gemma4
