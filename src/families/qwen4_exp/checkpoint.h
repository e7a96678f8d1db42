// Tensor names of a Flash Next checkpoint: MLX conversion and Hugging Face original (specs: Flash Next, 2).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "families/model.h"
#include "families/qwen4_exp/config.h"

namespace tensorfold::families::qwen4_exp {

/// How a section's experts are spelled.
enum class ExpertSpelling {
  switch_mlp,  ///< MLX: gates, ups and downs of all experts, a tensor each
  fused,       ///< published: gate over up of all experts in one tensor, downs in another
  single,      ///< as transformers saves it: three tensors an expert
};

/// How a checkpoint spells its names.
struct Layout {
  std::string root = "language_model.model.";  ///< Hugging Face: model.language_model., text-only: model.
  std::string head = "language_model.lm_head";
  std::optional<std::string> mtp = "language_model.mtp.";  ///< prefix of the MTP head; nothing: the checkpoint has none
  ExpertSpelling experts = ExpertSpelling::switch_mlp;
  ExpertSpelling mtp_experts = ExpertSpelling::switch_mlp;

  [[nodiscard]] std::string layer(size_t index) const { return root + "layers." + std::to_string(index) + "."; }
};

/// Tells the layouts apart by the names present; no names: MLX with an MTP head.
Layout find_layout(std::span<const std::string> names);

/// The modules of a layer's experts' first (gate and up) and second (down) products, as backend::Experts takes them.
struct ExpertModules {
  std::vector<std::string> in;
  std::vector<std::string> out;
};
ExpertModules expert_modules(const Config& config, const std::string& layer_prefix, ExpertSpelling spelling);

/// Prefix of what belongs to the n-gram embedding of its layer, and the modules of its table's shards.
std::string ngram_prefix(const std::string& layer_prefix);
std::vector<std::string> ngram_modules(const NgramConfig& ngram, const std::string& layer_prefix);

/// Every tensor that the family reads. The MTP head's are there if the config and the layout have one.
std::vector<TensorSpec> list_tensors(const Config& config, const Layout& layout);

/// Tensors that may stand beside them.
std::vector<SkippedTensors> skipped_tensors();

}  // namespace tensorfold::families::qwen4_exp
