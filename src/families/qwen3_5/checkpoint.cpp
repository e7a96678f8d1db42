#include "families/qwen3_5/checkpoint.h"

#include <algorithm>

namespace tensorfold::families::qwen3_5 {
namespace {

bool any_starts_with(std::span<const std::string> names, std::string_view prefix) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

/// Gathers specs under one prefix.
class Listing {
 public:
  Listing(std::vector<TensorSpec>& specs, std::string prefix, float norm_center)
      : specs_(specs), prefix_(std::move(prefix)), norm_center_(norm_center) {}

  void linear(const char* module, int64_t outputs, int64_t inputs) {
    specs_.push_back({prefix_ + module, TensorRole::linear, {outputs, inputs}});
  }
  void vector(const char* name, std::vector<int64_t> shape, float center, float spread) {
    specs_.push_back({prefix_ + name, TensorRole::vector, std::move(shape), false, center, spread});
  }
  void norm(const char* module, int64_t width) {
    vector((std::string(module) + ".weight").c_str(), {width}, norm_center_, 0.1F);
  }

 private:
  std::vector<TensorSpec>& specs_;
  std::string prefix_;
  float norm_center_;
};

void list_mlp(Listing& list, const Config& config) {
  list.norm("post_attention_layernorm", config.hidden);
  list.linear("mlp.gate_proj", config.intermediate, config.hidden);
  list.linear("mlp.up_proj", config.intermediate, config.hidden);
  list.linear("mlp.down_proj", config.hidden, config.intermediate);
}

void list_attention(Listing& list, const Config& config) {
  list.norm("input_layernorm", config.hidden);
  list.linear("self_attn.q_proj", config.query_outputs(), config.hidden);
  list.linear("self_attn.k_proj", config.kv_width(), config.hidden);
  list.linear("self_attn.v_proj", config.kv_width(), config.hidden);
  list.linear("self_attn.o_proj", config.hidden, config.heads * config.head_dim);
  list.norm("self_attn.q_norm", config.head_dim);
  list.norm("self_attn.k_norm", config.head_dim);
}

void list_delta(Listing& list, const Config& config) {
  const backend::GatedDeltaShape& delta = config.delta;
  list.norm("input_layernorm", config.hidden);
  list.linear("linear_attn.in_proj_qkv", delta.channels(), config.hidden);
  list.linear("linear_attn.in_proj_z", config.value_width(), config.hidden);
  list.linear("linear_attn.in_proj_b", delta.value_heads, config.hidden);
  list.linear("linear_attn.in_proj_a", delta.value_heads, config.hidden);
  list.linear("linear_attn.out_proj", config.hidden, config.value_width());
  list.vector("linear_attn.conv1d.weight", {delta.channels(), delta.kernel, 1}, 0.0F, 0.5F);
  list.vector("linear_attn.A_log", {delta.value_heads}, 0.5F, 1.5F);
  list.vector("linear_attn.dt_bias", {delta.value_heads}, -3.0F, 2.0F);
  list.vector("linear_attn.norm.weight", {delta.value_dim}, 1.0F, 0.1F);
}

void list_mtp(std::vector<TensorSpec>& specs, const Config& config, const std::string& prefix) {
  Listing list(specs, prefix, 0.0F);
  list.linear("fc", config.hidden, 2LL * config.hidden);
  list.norm("pre_fc_norm_embedding", config.hidden);
  list.norm("pre_fc_norm_hidden", config.hidden);
  list.norm("norm", config.hidden);
  Listing layer(specs, prefix + "layers.0.", 0.0F);
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
    Listing list(specs, layout.layer(layer), 1.0F);
    config.attends[static_cast<size_t>(layer)] ? list_attention(list, config) : list_delta(list, config);
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
          {"lm_head.", ""},
          {"language_model.lm_head.", ""}};
}

}  // namespace tensorfold::families::qwen3_5
