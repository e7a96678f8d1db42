#include "families/qwen3_5/decoder.h"

#include <algorithm>
#include <cmath>

namespace tensorfold::families::qwen3_5 {

using backend::Project;
using backend::Tensor;

Decoder::Decoder(const Config& config, backend::Backend& backend, int32_t max_rows)
    : config_(config), backend_(backend), frequencies_(backend.load_vector(config.rotary.frequencies())) {
  const int64_t attention = config.query_outputs() + 2LL * config.kv_width();
  const int64_t delta = config.delta.channels() + config.value_width() + 2LL * config.delta.value_heads;
  const auto rows = [&](int64_t width) { return backend.allocate(max_rows, width, backend::Precision::product); };
  projected_ = rows(std::max(attention, delta));
  mixed_ = rows(std::max(config.heads * config.head_dim, config.value_width()));
  inner_ = rows(config.intermediate);
}

void Decoder::layer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
                    Tensor x) const {
  if (const auto* full = std::get_if<AttentionWeights>(&weights.mixer)) {
    attention(plan, cache, entry, *full, x);
  } else {
    const auto& delta = std::get<NormedDeltaWeights>(weights.mixer);
    run_delta(backend_, plan,
              {.weights = delta.mixer,
               .shape = config_.delta,
               .cache = cache,
               .entry = entry,
               .input = x,
               .norm = delta.norm.get(),
               .epsilon = config_.epsilon,
               .projected = projected_,
               .mixed = mixed_,
               .add = true,
               .output = x});
  }
  mlp(plan, weights.mlp, x);
}

// Spec A.6: sigmoid-gated attention with normed, partly rotated queries and keys.
void Decoder::attention(const backend::Plan& plan, backend::Cache& cache, int32_t entry,
                        const AttentionWeights& weights, Tensor x) const {
  const Tensor in = projected_.view.columns(0, weights.in->outputs());
  const Tensor out = mixed_.view.columns(0, config_.heads * config_.head_dim);
  const int32_t queries = config_.query_outputs();
  const int32_t keys = config_.kv_width();
  backend_.project(
      plan,
      {.weights = weights.in.get(), .input = x, .norm = weights.norm.get(), .epsilon = config_.epsilon, .output = in});
  backend_.attention(plan, {.cache = &cache,
                            .entry = entry,
                            .query = in.columns(0, queries),
                            .key = in.columns(queries, keys),
                            .value = in.columns(queries + keys, keys),
                            .heads = config_.heads,
                            .kv_heads = config_.kv_heads,
                            .key_dim = config_.head_dim,
                            .value_dim = config_.head_dim,
                            .query_norm = weights.query_norm.get(),
                            .key_norm = weights.key_norm.get(),
                            .epsilon = config_.epsilon,
                            .rotary = {.frequencies = frequencies_.get()},
                            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim))),
                            .gated = config_.gated,
                            .output = out});
  backend_.project(plan, {.weights = weights.out.get(), .input = out, .epilogue = Project::Epilogue::add, .output = x});
}

// Spec A.4: W_down(silu(W_gate h) * W_up h).
void Decoder::mlp(const backend::Plan& plan, const MlpWeights& weights, Tensor x) const {
  backend_.project(plan, {.weights = weights.in.get(),
                          .input = x,
                          .norm = weights.norm.get(),
                          .epsilon = config_.epsilon,
                          .epilogue = Project::Epilogue::swiglu,
                          .output = inner_});
  backend_.project(plan,
                   {.weights = weights.out.get(), .input = inner_, .epilogue = Project::Epilogue::add, .output = x});
}

namespace {

AttentionWeights load_attention(WeightLoader& loader, const std::string& prefix, float shift) {
  const std::string mixer = prefix + "self_attn.";
  return {.norm = loader.vector(prefix + "input_layernorm.weight", shift),
          .in = loader.projection({mixer + "q_proj", mixer + "k_proj", mixer + "v_proj"}),
          .query_norm = loader.vector(mixer + "q_norm.weight", shift),
          .key_norm = loader.vector(mixer + "k_norm.weight", shift),
          .out = loader.projection({mixer + "o_proj"})};
}

}  // namespace

LayerWeights load_layer(WeightLoader& loader, const std::string& prefix, bool attends, float shift) {
  LayerWeights layer;
  if (attends) {
    layer.mixer = load_attention(loader, prefix, shift);
  } else {
    layer.mixer = NormedDeltaWeights{.norm = loader.vector(prefix + "input_layernorm.weight", shift),
                                     .mixer = load_delta(loader, prefix)};
  }
  layer.mlp = {.norm = loader.vector(prefix + "post_attention_layernorm.weight", shift),
               .in = loader.projection({prefix + "mlp.gate_proj", prefix + "mlp.up_proj"}),
               .out = loader.projection({prefix + "mlp.down_proj"})};
  return layer;
}

}  // namespace tensorfold::families::qwen3_5
