// Tensor names of a dense Qwen3.5-architecture checkpoint in its three layouts (specs: Qwen3.8-27B A.3).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "families/model.h"
#include "families/qwen3_5/config.h"

namespace tensorfold::families::qwen3_5 {

/// How a checkpoint spells its names.
struct Layout {
  std::string root =
      "language_model.model.";  ///< of the decoder; Hugging Face: model.language_model., text-only: model.
  std::string head = "language_model.lm_head";
  std::string mtp = "mtp.";  ///< of the MTP head; empty: the checkpoint has none

  [[nodiscard]] std::string layer(int32_t index) const { return root + "layers." + std::to_string(index) + "."; }
};

/// Tells the layouts apart by the names present; no names: MLX with an MTP head.
Layout find_layout(std::span<const std::string> names);

/// Every tensor that the family reads. The MTP head's are there if the config and the layout have one (of one layer).
std::vector<TensorSpec> list_tensors(const Config& config, const Layout& layout);

/// Tensors that may stand beside them.
std::vector<SkippedTensors> skipped_tensors();

}  // namespace tensorfold::families::qwen3_5
