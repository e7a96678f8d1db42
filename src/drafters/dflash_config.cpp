#include "drafters/dflash_config.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tensorfold::drafters {
namespace {

using nlohmann::json;

// The value of `key` in dflash_config, else at the top level, else null.
const json& look_up(const json& config, const char* key) {
  static const json nothing;
  if (const auto inner = config.find("dflash_config"); inner != config.end() && inner->is_object()) {
    if (const auto value = inner->find(key); value != inner->end()) return *value;
  }
  const auto value = config.find(key);
  return value == config.end() ? nothing : *value;
}

template <typename T>
T number(const json& config, const char* key, T fallback, std::vector<std::string>& problems) {
  const json& value = look_up(config, key);
  if (value.is_null()) return fallback;
  if (!value.is_number()) {
    problems.push_back(fmt::format("{} is not a number", key));
    return fallback;
  }
  return value.get<T>();
}

// Evenly spaced taps where a config names none (DFlash v1's rule).
std::vector<int32_t> default_taps(int32_t target_layers, size_t count) {
  if (count <= 1) return {target_layers / 2};
  std::vector<int32_t> taps(count);
  for (size_t i = 0; i < count; ++i) {
    const double step = static_cast<double>(target_layers - 4) / static_cast<double>(count - 1);
    taps[i] = static_cast<int32_t>(std::lround(1.0 + static_cast<double>(i) * step));
  }
  return taps;
}

void read_layers(const json& config, DflashConfig& out, std::vector<std::string>& problems) {
  const auto count = number<int32_t>(config, "num_hidden_layers", 0, problems);
  const auto window = number<int32_t>(config, "sliding_window", 0, problems);
  const json& types = look_up(config, "layer_types");
  const json& causal = look_up(config, "is_causal");
  if (count <= 0 || count > 256) {
    problems.push_back(fmt::format("num_hidden_layers is {}", count));
    return;
  }
  for (int32_t i = 0; i < count; ++i) {
    const bool sliding = types.is_array() && static_cast<size_t>(i) < types.size() &&
                         types[static_cast<size_t>(i)] == "sliding_attention";
    DflashLayer layer;
    layer.window = sliding ? window : 0;
    layer.causal = causal.is_boolean() ? causal.get<bool>() : sliding;
    out.layers.push_back(layer);
  }
}

void read_taps(const json& config, const families::ModelInfo& target, DflashConfig& out,
               std::vector<std::string>& problems) {
  const json& taps = look_up(config, "target_layer_ids");
  if (taps.is_array()) {
    for (const json& tap : taps) out.tap_layers.push_back(tap.is_number_integer() ? tap.get<int32_t>() : -1);
  } else {
    out.tap_layers = default_taps(target.layers, out.layers.size());
  }
  std::vector<int32_t> sorted = out.tap_layers;
  std::sort(sorted.begin(), sorted.end());
  const bool unique = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (sorted.empty() || !unique || sorted.front() < 0 || sorted.back() >= target.layers) {
    problems.push_back(
        fmt::format("target_layer_ids {} do not fit a target of {} layers", out.tap_layers, target.layers));
  }
}

void check_sizes(const json& config, const families::ModelInfo& target, const DflashConfig& out,
                 std::vector<std::string>& problems) {
  if (out.hidden_size != target.hidden_size) {
    problems.push_back(fmt::format("hidden_size {} is not the target's {}", out.hidden_size, target.hidden_size));
  }
  const auto target_layers = number<int32_t>(config, "num_target_layers", target.layers, problems);
  if (target_layers != target.layers) {
    problems.push_back(fmt::format("num_target_layers {} is not the target's {}", target_layers, target.layers));
  }
  const auto vocabulary = number<int64_t>(config, "vocab_size", target.vocabulary_size, problems);
  if (vocabulary != target.vocabulary_size) {
    problems.push_back(fmt::format("vocab_size {} is not the target's {}", vocabulary, target.vocabulary_size));
  }
  if (out.mask_token < 0 || out.mask_token >= target.vocabulary_size) {
    problems.push_back(fmt::format("mask_token_id {} is outside the vocabulary", out.mask_token));
  }
  if (out.block_size < 2 || out.block_size > 256) problems.push_back(fmt::format("block_size is {}", out.block_size));
  if (out.heads <= 0 || out.kv_heads <= 0 || out.head_dim <= 0 || out.heads % std::max(1, out.kv_heads) != 0) {
    problems.push_back(fmt::format("heads {} / {} of {} make no attention", out.heads, out.kv_heads, out.head_dim));
  }
  if (out.convolution_group < 0 || (out.convolution_group > 0 && out.hidden_size % out.convolution_group != 0)) {
    problems.push_back(fmt::format("conv_group_size {} does not divide hidden_size", out.convolution_group));
  }
  if (out.selector_rank < 0 || out.selector_top < 1)
    problems.push_back("the candidate selector's sizes are not positive");
}

}  // namespace

DflashConfig read_dflash_config(const json& config, const families::ModelInfo& target) {
  if (!config.is_object()) fail(ErrorKind::invalid_request, "the drafter's config.json is not an object");
  const json& architectures = look_up(config, "architectures");
  const std::string architecture = architectures.is_array() && !architectures.empty() && architectures[0].is_string()
                                       ? architectures[0].get<std::string>()
                                       : "DFlash2DraftModel";
  const bool second = architecture == "DFlash2DraftModel";
  if (!second && architecture != "DFlashDraftModel") {
    fail(ErrorKind::unsupported, "the drafter's architecture {} is not DFlashDraftModel or DFlash2DraftModel",
         architecture);
  }
  std::vector<std::string> problems;
  const auto inner = config.find("dflash_config");
  if (inner != config.end() && !inner->is_null() && !inner->is_object())
    problems.emplace_back("dflash_config is not an object");
  DflashConfig out;
  out.hidden_size = number<int64_t>(config, "hidden_size", 0, problems);
  out.intermediate_size = number<int64_t>(config, "intermediate_size", 0, problems);
  out.heads = number<int32_t>(config, "num_attention_heads", 0, problems);
  out.kv_heads = number<int32_t>(config, "num_key_value_heads", out.heads, problems);
  out.head_dim = number<int32_t>(config, "head_dim", 128, problems);
  out.epsilon = number<float>(config, "rms_norm_eps", 1e-6F, problems);
  const json& rope = look_up(config, "rope_parameters");
  if (!rope.is_null() && !rope.is_object()) problems.emplace_back("rope_parameters is not an object");
  out.rope_theta = number<double>(rope.is_object() ? rope : config, "rope_theta", 1e7, problems);
  out.block_size = number<int32_t>(config, "block_size", 0, problems);
  out.mask_token = number<int32_t>(config, "mask_token_id", -1, problems);
  if (second) {
    out.convolution_group = number<int32_t>(config, "conv_group_size", 16, problems);
    out.selector_rank = number<int32_t>(config, "selector_rank", 256, problems);
    out.selector_top = number<int32_t>(config, "selector_top_k", 16, problems);
    if (number<int32_t>(config, "conv_kernel_size", 2, problems) != 2) problems.push_back("conv_kernel_size is not 2");
  }
  if (number<float>(config, "input_embedding_scale", 1.0F, problems) != 1.0F) {
    problems.push_back("input_embedding_scale is not 1");
  }
  out.output_multiplier = number<float>(config, "output_multiplier", 1.0F, problems);
  out.logit_softcap = number<float>(config, "final_logit_softcapping", 0.0F, problems);
  read_layers(config, out, problems);
  read_taps(config, target, out, problems);
  check_sizes(config, target, out, problems);
  if (!problems.empty()) fail(ErrorKind::invalid_request, "this drafter does not fit: {}", fmt::join(problems, "; "));
  return out;
}

}  // namespace tensorfold::drafters
