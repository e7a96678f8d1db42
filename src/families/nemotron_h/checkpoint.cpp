#include "families/nemotron_h/checkpoint.h"

#include <algorithm>

#include "families/tensor_list.h"

namespace tensorfold::families::nemotron_h {
namespace {

bool any_starts_with(std::span<const std::string> names, const std::string& prefix) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

bool any_contains(std::span<const std::string> names, const std::string& prefix, std::string_view part) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(prefix) && name.find(part) != std::string::npos;
  });
}

constexpr std::string_view kSingleExpert = ".mixer.experts.0.";

void list_mamba(TensorList& list, const Config& config) {
  const backend::Mamba2Shape& mamba = config.mamba;
  list.linear("mixer.in_proj", config.mamba_width(), config.hidden);
  list.vector("mixer.conv1d.weight", {mamba.channels(), mamba.kernel, 1}, 0.0F, 0.5F);
  list.vector("mixer.conv1d.bias", {mamba.channels()}, 0.0F, 0.2F);
  list.vector("mixer.A_log", {mamba.heads}, 0.5F, 1.5F);
  list.vector("mixer.D", {mamba.heads}, 1.0F, 0.5F);
  list.vector("mixer.dt_bias", {mamba.heads}, -3.0F, 2.0F);
  list.vector("mixer.norm.weight", {mamba.values()}, 1.0F, 0.1F);
  list.linear("mixer.out_proj", config.hidden, mamba.values());
}

void list_attention(TensorList& list, const Config& config) {
  list.linear("mixer.q_proj", config.query_width(), config.hidden);
  list.linear("mixer.k_proj", config.kv_width(), config.hidden);
  list.linear("mixer.v_proj", config.kv_width(), config.hidden);
  list.linear("mixer.o_proj", config.hidden, config.query_width());
}

void list_experts(TensorList& list, const Config& config, bool stacked) {
  list.router("mixer.gate", config.experts, config.hidden);
  list.vector("mixer.gate.e_score_correction_bias", {config.experts}, 0.0F, 0.1F);
  const ExpertModules modules = expert_modules(config, "", stacked);
  const auto add = [&](const std::string& module, int64_t outputs, int64_t inputs) {
    stacked ? list.experts(module, config.experts, config.chosen, outputs, inputs)
            : list.expert(module, config.experts, config.chosen, outputs, inputs);
  };
  for (const std::string& module : modules.up) add(module, config.expert_width, config.hidden);
  for (const std::string& module : modules.down) add(module, config.hidden, config.expert_width);
  list.linear("mixer.shared_experts.up_proj", config.shared_width, config.hidden);
  list.linear("mixer.shared_experts.down_proj", config.hidden, config.shared_width);
}

void list_mtp(std::vector<TensorSpec>& specs, const Config& config, const Layout& layout) {
  TensorList attention(specs, *layout.mtp + "layers.0.");
  attention.norm("enorm", config.hidden);
  attention.norm("hnorm", config.hidden);
  attention.linear("eh_proj", config.hidden, 2LL * config.hidden);
  attention.norm("norm", config.hidden);
  list_attention(attention, config);
  TensorList experts(specs, *layout.mtp + "layers.1.");
  experts.norm("norm", config.hidden);
  list_experts(experts, config, layout.mtp_stacked);
  experts.norm("final_layernorm", config.hidden);
}

}  // namespace

Layout find_layout(std::span<const std::string> names) {
  Layout layout;
  if (names.empty()) return layout;
  for (const char* root : {"language_model.backbone.", "model.", "backbone."}) {
    if (any_starts_with(names, std::string(root) + "layers.")) layout.root = root;
  }
  if (any_starts_with(names, "language_model.lm_head.")) layout.head = "language_model.lm_head";
  layout.mtp.reset();
  for (const char* prefix : {"language_model.mtp.", "mtp.", ""}) {
    if (any_starts_with(names, std::string(prefix) + "layers.0.eh_proj.")) layout.mtp = prefix;
  }
  layout.stacked = !any_contains(names, layout.root + "layers.", kSingleExpert);
  if (layout.mtp) layout.mtp_stacked = !any_contains(names, *layout.mtp + "layers.1", kSingleExpert);
  return layout;
}

ExpertModules expert_modules(const Config& config, const std::string& prefix, bool stacked) {
  if (stacked) return {{prefix + "mixer.switch_mlp.fc1"}, {prefix + "mixer.switch_mlp.fc2"}};
  ExpertModules modules;
  for (int32_t expert = 0; expert < config.experts; ++expert) {
    const std::string module = prefix + "mixer.experts." + std::to_string(expert);
    modules.up.push_back(module + ".up_proj");
    modules.down.push_back(module + ".down_proj");
  }
  return modules;
}

std::vector<TensorSpec> list_tensors(const Config& config, const Layout& layout) {
  std::vector<TensorSpec> specs;
  const TensorRole table = config.tied ? TensorRole::tied_embedding : TensorRole::embedding;
  specs.push_back({layout.root + "embeddings", table, {config.vocabulary, config.hidden}});
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    TensorList list(specs, layout.layer(layer));
    list.norm("norm", config.hidden);
    switch (config.layers[layer]) {
      case LayerKind::mamba:
        list_mamba(list, config);
        break;
      case LayerKind::attention:
        list_attention(list, config);
        break;
      case LayerKind::experts:
        list_experts(list, config, layout.stacked);
        break;
    }
  }
  specs.push_back({layout.root + "norm_f.weight", TensorRole::vector, {config.hidden}});
  if (!config.tied) specs.push_back({layout.head, TensorRole::linear, {config.vocabulary, config.hidden}});
  const size_t first = specs.size();
  if (config.mtp && layout.mtp) list_mtp(specs, config, layout);
  for (size_t i = first; i < specs.size(); ++i) specs[i].draft_head = true;
  return specs;
}

std::vector<SkippedTensors> skipped_tensors() {
  const std::string mtp = "MTP tensors are skipped: config.json has no MTP head of one attention and one expert layer";
  return {{"mtp.", mtp}, {"language_model.mtp.", mtp}, {"layers.", mtp}, {"lm_head.", kUnusedHead}};
}

}  // namespace tensorfold::families::nemotron_h
