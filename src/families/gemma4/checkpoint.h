// Tensor names of a Gemma 4 checkpoint in its layouts: MLX conversion, Hugging Face original with towers, text alone
// (specs: Gemma 4, 6).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "families/gemma4/config.h"
#include "families/model.h"

namespace tensorfold::families::gemma4 {

/// How a checkpoint spells its names.
struct Layout {
  std::string root = "language_model.model.";
  bool joined = false;  ///< an expert's gate and up are one matrix, in parameters without ".weight"

  [[nodiscard]] std::string layer(size_t index) const { return root + "layers." + std::to_string(index) + "."; }
};

/// Tells the layouts apart by the names present; no names: MLX.
Layout find_layout(std::span<const std::string> names);

/// The modules of a layer's experts' first and second products.
struct ExpertModules {
  std::vector<std::string> in;  ///< gate and up, or both in one
  std::string out;
};
ExpertModules expert_modules(const Layout& layout, const std::string& layer_prefix);

/// Every tensor that the family reads.
std::vector<TensorSpec> list_tensors(const Config& config, const Layout& layout);

/// Tensors that may stand beside them.
std::vector<SkippedTensors> skipped_tensors();

}  // namespace tensorfold::families::gemma4
