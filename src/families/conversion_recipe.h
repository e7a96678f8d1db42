// Which modules of a conversion get how many bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "families/model.h"

namespace tensorfold::families {

/// The names of mixed recipes: "mixed_3_6" and others.
std::vector<std::string> recipe_names();

/// config.json's block `quantization`: every module in `bits` and groups of `group`; with a mixed recipe (its low width
/// in place of `bits`) the high width for lm_head and, in layer i of n, for v_proj and down_proj where i < n / 8, i >=
/// 7 n / 8 or (i - n / 8) mod 3 = 2 (specs: MLX format 7). `recipe` empty: none. Throws Error(invalid_request) for an
/// unknown one.
nlohmann::json make_quantization(const Family& family, const nlohmann::json& config, int32_t bits, int32_t group,
                                 const std::string& recipe);

}  // namespace tensorfold::families
