// Tensor names of a Nemotron-H checkpoint: MLX conversion (MTP head in a side file) and Hugging Face original (specs:
// Nemotron 3.5, 6 and 9.2).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "families/model.h"
#include "families/nemotron_h/config.h"

namespace tensorfold::families::nemotron_h {

/// How a checkpoint spells its names.
struct Layout {
  std::string root = "backbone.";
  std::string head = "lm_head";
  std::optional<std::string> mtp = "";  ///< prefix of the MTP head (of mtp-4bit.safetensors: none); nothing: no head
  bool stacked = true;                  ///< the experts of a layer are one tensor
  bool mtp_stacked = true;

  [[nodiscard]] std::string layer(size_t index) const { return root + "layers." + std::to_string(index) + "."; }
};

/// Tells the layouts apart by the names present; no names: MLX with an MTP head.
Layout find_layout(std::span<const std::string> names);

/// The modules of a layer's experts' first (up) and second (down) products, in expert order.
struct ExpertModules {
  std::vector<std::string> up;
  std::vector<std::string> down;
};
ExpertModules expert_modules(const Config& config, const std::string& layer_prefix, bool stacked);

/// Every tensor that the family reads. The MTP head's are there if the config and the layout have one.
std::vector<TensorSpec> list_tensors(const Config& config, const Layout& layout);

/// Tensors that may stand beside them.
std::vector<SkippedTensors> skipped_tensors();

}  // namespace tensorfold::families::nemotron_h
