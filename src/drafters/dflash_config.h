// The configuration of a DFlash drafter (v1: block diffusion; v2: with dynamic convolutions and a candidate selector).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "families/model.h"

namespace tensorfold::drafters {

/// Attention of one drafter layer.
struct DflashLayer {
  int32_t window = 0;   ///< context positions a row sees, itself included; 0: all
  bool causal = false;  ///< inside the block: rows up to itself only
};

struct DflashConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  float epsilon = 1e-6F;
  double rope_theta = 1e7;
  std::vector<DflashLayer> layers;
  int32_t block_size = 0;  ///< pending token and mask rows
  int32_t mask_token = 0;
  std::vector<int32_t> tap_layers;  ///< in the order of fc's column blocks
  int32_t convolution_group = 0;    ///< 0: no dynamic convolutions (v1)
  int32_t selector_rank = 0;        ///< 0: no candidate selector (v1)
  int32_t selector_top = 16;
  float output_multiplier = 1.0F;
  float logit_softcap = 0.0F;  ///< 0: none
};

/// Reads and checks a drafter's config.json against its target. A key inside `dflash_config` wins over the top level.
/// Throws Error(unsupported or invalid_request) with every mismatch in one line.
DflashConfig read_dflash_config(const nlohmann::json& config, const families::ModelInfo& target);

}  // namespace tensorfold::drafters
