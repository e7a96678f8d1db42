#include "families/qwen3_5/checkpoint.h"

#include <algorithm>

#include "families/delta_mixer.h"
#include "families/tensor_list.h"

namespace tensorfold::families::qwen3_5 {
namespace {

bool any_starts_with(std::span<const std::string> names, std::string_view prefix) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

void list_mlp(TensorList& list, const Config& config) {
  list.norm("post_attention_layernorm", config.hidden);
  list.linear("mlp.gate_proj", config.intermediate, config.hidden);
  list.linear("mlp.up_proj", config.intermediate, config.hidden);
  list.linear("mlp.down_proj", config.hidden, config.intermediate);
}

void list_attention(TensorList& list, const Config& config) {
  list.norm("input_layernorm", config.hidden);
  list.linear("self_attn.q_proj", config.query_outputs(), config.hidden);
  list.linear("self_attn.k_proj", config.kv_width(), config.hidden);
  list.linear("self_attn.v_proj", config.kv_width(), config.hidden);
  list.linear("self_attn.o_proj", config.hidden, config.heads * config.head_dim);
  list.norm("self_attn.q_norm", config.head_dim);
  list.norm("self_attn.k_norm", config.head_dim);
}

void list_mtp(std::vector<TensorSpec>& specs, const Config& config, const std::string& prefix) {
  TensorList list(specs, prefix, 0.0F);
  list.linear("fc", config.hidden, 2LL * config.hidden);
  list.norm("pre_fc_norm_embedding", config.hidden);
  list.norm("pre_fc_norm_hidden", config.hidden);
  list.norm("norm", config.hidden);
  TensorList layer(specs, prefix + "layers.0.", 0.0F);
  list_attention(layer, config);
  list_mlp(layer, config);
}

}  // namespace

Layout find_layout(std::span<const std::string> names) {
  Layout layout;
  if (names.empty()) return layout;
  if (!any_starts_with(names, "language_model.")) {
    const bool wrapped = any_starts_with(names, "model.language_model.");
    layout.root = wrapped ? "model.language_model." : "model.";
    layout.head = "lm_head";
  }
  layout.mtp.clear();
  for (const char* prefix : {"mtp.", "language_model.mtp.", "model.language_model.mtp.", "model.mtp."}) {
    if (layout.mtp.empty() && any_starts_with(names, prefix)) layout.mtp = prefix;
  }
  return layout;
}

std::vector<TensorSpec> list_tensors(const Config& config, const Layout& layout) {
  std::vector<TensorSpec> specs;
  const TensorRole table = config.tied ? TensorRole::tied_embedding : TensorRole::embedding;
  specs.push_back({layout.root + "embed_tokens", table, {config.vocabulary, config.hidden}});
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    TensorList list(specs, layout.layer(layer), 1.0F);
    if (config.attends[static_cast<size_t>(layer)]) {
      list_attention(list, config);
    } else {
      list.norm("input_layernorm", config.hidden);
      list_delta(list, config.delta, config.hidden);
    }
    list_mlp(list, config);
  }
  specs.push_back({layout.root + "norm.weight", TensorRole::vector, {config.hidden}});
  if (!config.tied) specs.push_back({layout.head, TensorRole::linear, {config.vocabulary, config.hidden}});
  const size_t first = specs.size();
  if (config.mtp_layers == 1 && !layout.mtp.empty()) list_mtp(specs, config, layout.mtp);
  for (size_t i = first; i < specs.size(); ++i) specs[i].draft_head = true;
  return specs;
}

std::vector<SkippedTensors> skipped_tensors() {
  const std::string vision = "the vision tower is skipped: text only";
  const std::string mtp = "MTP tensors are skipped: config.json has no MTP head of one layer";
  return {{"vision_tower.", vision},
          {"model.visual.", vision},
          {"visual.", vision},
          {"audio_tower.", "the audio tower is skipped: text only"},
          {"mtp.", mtp},
          {"language_model.mtp.", mtp},
          {"model.language_model.mtp.", mtp},
          {"model.mtp.", mtp},
          // Only outside the inventory: a copy of a tied embedding.
          {"lm_head.", kUnusedHead},
          {"language_model.lm_head.", kUnusedHead}};
}

}  // namespace tensorfold::families::qwen3_5
