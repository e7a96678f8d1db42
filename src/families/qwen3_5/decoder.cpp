#include "families/qwen3_5/decoder.h"

#include <algorithm>
#include <cmath>

namespace tensorfold::families::qwen3_5 {

using backend::Project;
using backend::Tensor;

Decoder::Decoder(const Config& config, backend::Backend& backend, int32_t max_rows)
    : config_(config), backend_(backend), frequencies_(backend.load_vector(config.frequencies())) {
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
    gated_delta(plan, cache, entry, std::get<DeltaWeights>(weights.mixer), x);
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

/// Added to a query or key head's sum of squares, as transformers' model code has it and the weights were trained with.
/// MLX adds it to the mean, 128 times as much: on the demonstration model that moves logits by up to 5e-3.
constexpr float kKeySumEpsilon = 1e-6F;

// Spec A.5: convolution, gates, gated delta rule and gated norm are one operation, since a row continues its parent's.
void Decoder::gated_delta(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const DeltaWeights& weights,
                          Tensor x) const {
  const int64_t channels = config_.delta.channels();
  const int64_t values = config_.value_width();
  const int64_t heads = config_.delta.value_heads;
  const Tensor in = projected_.view.columns(0, weights.in->outputs());
  const Tensor out = mixed_.view.columns(0, values);
  backend_.project(
      plan,
      {.weights = weights.in.get(), .input = x, .norm = weights.norm.get(), .epsilon = config_.epsilon, .output = in});
  backend_.gated_delta(plan, {.cache = &cache,
                              .entry = entry,
                              .mixed = in.columns(0, channels),
                              .gate = in.columns(channels, values),
                              .beta = in.columns(channels + values, heads),
                              .decay = in.columns(channels + values + heads, heads),
                              .convolution = weights.convolution.get(),
                              .decay_log = weights.decay_log.get(),
                              .decay_bias = weights.decay_bias.get(),
                              .norm = weights.inner_norm.get(),
                              .epsilon = config_.epsilon,
                              .key_epsilon = kKeySumEpsilon / static_cast<float>(config_.delta.key_dim),
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

DeltaWeights load_delta(WeightLoader& loader, const std::string& prefix, float shift) {
  const std::string mixer = prefix + "linear_attn.";
  return {
      .norm = loader.vector(prefix + "input_layernorm.weight", shift),
      .in = loader.projection({mixer + "in_proj_qkv", mixer + "in_proj_z", mixer + "in_proj_b", mixer + "in_proj_a"}),
      .convolution = loader.vector(mixer + "conv1d.weight"),
      .decay_log = loader.vector(mixer + "A_log"),
      .decay_bias = loader.vector(mixer + "dt_bias"),
      .inner_norm = loader.vector(mixer + "norm.weight"),  // a plain multiplier in every layout
      .out = loader.projection({mixer + "out_proj"})};
}

}  // namespace

LayerWeights load_layer(WeightLoader& loader, const std::string& prefix, bool attends, float shift) {
  LayerWeights layer;
  if (attends) {
    layer.mixer = load_attention(loader, prefix, shift);
  } else {
    layer.mixer = load_delta(loader, prefix, shift);
  }
  layer.mlp = {.norm = loader.vector(prefix + "post_attention_layernorm.weight", shift),
               .in = loader.projection({prefix + "mlp.gate_proj", prefix + "mlp.up_proj"}),
               .out = loader.projection({prefix + "mlp.down_proj"})};
  return layer;
}

}  // namespace tensorfold::families::qwen3_5
