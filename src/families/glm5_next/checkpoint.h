// Tensor names of a GLM-5.3-Flash checkpoint: the Hugging Face original and MLX conversions that keep its names, and
// MLX conversions of mlx-lm's own names (specs: GLM-5.3-Flash, 4).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "families/glm5_next/config.h"
#include "families/model.h"

namespace tensorfold::families::glm5_next {

/// How a checkpoint spells its names.
struct Layout {
  std::string root = "model.language_model.";
  std::string head = "lm_head";
  bool renamed = false;            ///< mlx-lm's own names
  bool exponentiated = false;      ///< decays are stored as A = exp(A_log)
  std::optional<std::string> mtp;  ///< prefix of the MTP head's norms and joining product; nothing: no head
  std::string mtp_layer;           ///< prefix of its layer

  [[nodiscard]] std::string layer(size_t index) const { return root + "layers." + std::to_string(index) + "."; }
  /// "fn", "base" or "scale" of the streams' weights before "attn" or "ffn".
  [[nodiscard]] std::string streams(const char* site, const char* part) const {
    return renamed ? std::string(site) + "_hc." + part : std::string("hc_") + site + "_" + part;
  }
  [[nodiscard]] const char* mtp_norm() const { return renamed ? "norm" : "shared_head.norm"; }
  /// What stands before A_log, dt_bias, f_a_proj and f_b_proj.
  [[nodiscard]] const char* decay() const { return renamed ? "self_attn.forget_gate." : "self_attn."; }
};

/// Tells the layouts apart by the names present; no names: the original's, with an MTP head behind `layers` layers.
Layout find_layout(const Config& config, std::span<const std::string> names);

/// The modules of a layer's experts' first products (every gate, then every up) and second products.
struct ExpertModules {
  std::vector<std::string> in;
  std::vector<std::string> out;
};
ExpertModules expert_modules(const Config& config, const Layout& layout, const std::string& layer_prefix);

/// The convolutions of q, k and v, in this order.
std::vector<std::string> convolution_names(const Layout& layout, const std::string& layer_prefix);

/// Every tensor that the family reads. The MTP head's are there if the config and the layout have one.
std::vector<TensorSpec> list_tensors(const Config& config, const Layout& layout);

/// Tensors that may stand beside them.
std::vector<SkippedTensors> skipped_tensors();

}  // namespace tensorfold::families::glm5_next
