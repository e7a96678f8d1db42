#include "drafters/synthetic_drafter.h"

#include <string>

#include <fmt/format.h>

namespace tensorfold::drafters {

std::unique_ptr<format::SyntheticStore> make_synthetic_drafter(const DflashConfig& config, int64_t vocabulary,
                                                               uint64_t seed) {
  auto store = std::make_unique<format::SyntheticStore>(seed);
  const int64_t hidden = config.hidden_size;
  const int64_t queries = int64_t{config.heads} * config.head_dim;
  const int64_t keys = int64_t{config.kv_heads} * config.head_dim;
  const auto matrix = [&](const std::string& name, int64_t outputs, int64_t inputs) {
    store->add_linear(name, {outputs, inputs}, std::nullopt);
  };
  const auto norm = [&](const std::string& name, int64_t size) {
    store->add_vector(name + ".weight", {size}, 1.0F, 0.1F);
  };
  const auto convolution = [&](const std::string& name) {
    if (config.convolution_group == 0) return;
    matrix(name + ".kernel_projection", 4 * (hidden / config.convolution_group), hidden);
    store->add_vector(name + ".base_kernel", {2, 2, hidden}, 0.5F, 0.5F);
  };
  matrix("fc", hidden, hidden * static_cast<int64_t>(config.tap_layers.size()));
  norm("hidden_norm", hidden);
  norm("norm", hidden);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const std::string at = fmt::format("layers.{}.", i);
    norm(at + "input_layernorm", hidden);
    norm(at + "post_attention_layernorm", hidden);
    convolution(at + "attention_conv");
    convolution(at + "mlp_conv");
    matrix(at + "self_attn.q_proj", queries, hidden);
    matrix(at + "self_attn.k_proj", keys, hidden);
    matrix(at + "self_attn.v_proj", keys, hidden);
    matrix(at + "self_attn.o_proj", hidden, queries);
    norm(at + "self_attn.q_norm", config.head_dim);
    norm(at + "self_attn.k_norm", config.head_dim);
    matrix(at + "mlp.gate_proj", config.intermediate_size, hidden);
    matrix(at + "mlp.up_proj", config.intermediate_size, hidden);
    matrix(at + "mlp.down_proj", hidden, config.intermediate_size);
  }
  if (config.selector_rank > 0) {
    matrix("candidate_selector.hidden_projection", config.selector_rank, hidden);
    for (const char* side : {"predecessor", "successor"}) {
      store->add_vector(fmt::format("candidate_selector.{}_codebook", side), {vocabulary, config.selector_rank}, 0.0F,
                        0.1F);
    }
  }
  return store;
}

}  // namespace tensorfold::drafters
