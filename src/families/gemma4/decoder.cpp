#include "families/gemma4/decoder.h"

#include <algorithm>
#include <cmath>

namespace tensorfold::families::gemma4 {

using backend::Precision;
using backend::Project;
using backend::Tensor;

namespace {

/// Frequencies of the layers of a kind, whose heads are of one size.
VectorPointer load_frequencies(const Config& config, backend::Backend& backend, bool sliding) {
  for (const LayerShape& layer : config.layers) {
    if (layer.sliding == sliding) return backend.load_vector(config.frequencies(sliding, layer.head_dim));
  }
  return nullptr;
}

}  // namespace

Decoder::Decoder(const Config& config, backend::Backend& backend, int32_t max_rows)
    : config_(config),
      backend_(backend),
      sliding_frequencies_(load_frequencies(config, backend, true)),
      full_frequencies_(load_frequencies(config, backend, false)) {
  int64_t in = 0;
  int64_t queries = 0;
  for (const LayerShape& layer : config.layers) {
    in = std::max(in, config.query_width(layer) + (layer.own_values ? 2 : 1) * Config::kv_width(layer));
    queries = std::max(queries, config.query_width(layer));
  }
  projected_ = backend.allocate(max_rows, in, Precision::product);
  mixed_ = backend.allocate(max_rows, queries, Precision::product);
  inner_ = backend.allocate(max_rows, config.intermediate, Precision::product);
  dense_ = backend.allocate(max_rows, config.hidden);
  logits_ = backend.allocate(max_rows, config.experts);
  branch_ = backend.allocate(max_rows, config.hidden);
}

void Decoder::layer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
                    Tensor x) const {
  attention(plan, cache, entry, weights, x);
  feed_forward(plan, weights, x);
}

// Spec 3.1: scores are not scaled; values are normed without a weight, and in full layers they are the raw keys.
void Decoder::attention(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
                        Tensor x) const {
  const LayerShape& shape = weights.shape;
  const int64_t queries = config_.query_width(shape);
  const int64_t keys = Config::kv_width(shape);
  const Tensor in = projected_.view.columns(0, weights.attention_in->outputs());
  const Tensor out = mixed_.view.columns(0, queries);
  const VectorPointer& frequencies = shape.sliding ? sliding_frequencies_ : full_frequencies_;
  backend_.project(plan, {.weights = weights.attention_in.get(),
                          .input = x,
                          .norm = weights.input_norm.get(),
                          .epsilon = config_.epsilon,
                          .output = in});
  backend_.attention(plan, {.cache = &cache,
                            .entry = entry,
                            .query = in.columns(0, queries),
                            .key = in.columns(queries, keys),
                            .value = in.columns(shape.own_values ? queries + keys : queries, keys),
                            .heads = config_.heads,
                            .kv_heads = shape.kv_heads,
                            .key_dim = shape.head_dim,
                            .value_dim = shape.head_dim,
                            .query_norm = weights.query_norm.get(),
                            .key_norm = weights.key_norm.get(),
                            .epsilon = config_.epsilon,
                            .rotary = {.frequencies = frequencies.get()},
                            .scale = 1.0F,
                            .window = shape.sliding ? config_.window : 0,
                            .normalise_values = true,
                            .output = out});
  backend_.project(plan, {.weights = weights.attention_out.get(), .input = out, .output = branch_});
  backend_.norm_add(plan, {.input = branch_,
                           .weight = weights.attention_norm.get(),
                           .epsilon = config_.epsilon,
                           .residual = x,
                           .output = x});
}

// Spec 3, steps 3 to 6: the dense MLP, the router and the experts read the same rows, each through its own norm.
void Decoder::feed_forward(const backend::Plan& plan, const LayerWeights& weights, Tensor x) const {
  const float epsilon = config_.epsilon;
  backend_.project(plan, {.weights = weights.dense_in.get(),
                          .input = x,
                          .norm = weights.dense_norm.get(),
                          .epsilon = epsilon,
                          .epilogue = Project::Epilogue::geglu,
                          .output = inner_});
  backend_.project(plan, {.weights = weights.dense_out.get(), .input = inner_, .output = dense_});
  backend_.rms_norm(plan,
                    {.input = dense_, .weight = weights.dense_out_norm.get(), .epsilon = epsilon, .output = dense_});
  backend_.project(plan, {.weights = weights.router.get(),
                          .input = x,
                          .norm = weights.router_norm.get(),
                          .epsilon = epsilon,
                          .output = logits_});
  // Softmax over all, divided by the sum of the chosen, is the softmax over the chosen (spec 3.3, 4).
  backend_.experts(plan, {.input = x,
                          .norm = weights.expert_norm.get(),
                          .epsilon = epsilon,
                          .logits = logits_,
                          .routing = {.scores = backend::Routing::Scores::softmax,
                                      .chosen = config_.chosen,
                                      .normalise = true,
                                      .expert_factors = weights.expert_factors.get()},
                          .in = weights.expert_in.get(),
                          .out = weights.expert_out.get(),
                          .activation = backend::Activation::geglu,
                          .output = branch_});
  backend_.norm_add(plan, {.input = branch_,
                           .weight = weights.expert_out_norm.get(),
                           .epsilon = epsilon,
                           .residual = dense_,
                           .output = dense_});
  backend_.norm_add(plan, {.input = dense_,
                           .weight = weights.out_norm.get(),
                           .epsilon = epsilon,
                           .residual = x,
                           .factor = weights.factor,
                           .output = x});
}

LayerWeights load_layer(WeightLoader& loader, backend::Backend& backend, const Config& config, const Layout& layout,
                        size_t layer) {
  const std::string prefix = layout.layer(layer);
  const std::string attention = prefix + "self_attn.";
  const ExpertModules experts = expert_modules(layout, prefix);
  std::vector<float> router_scale = loader.values(prefix + "router.scale");
  const auto root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.hidden)));
  for (float& value : router_scale) value *= root;
  LayerWeights weights;
  weights.shape = config.layers[layer];
  weights.input_norm = loader.vector(prefix + "input_layernorm.weight");
  std::vector<std::string> in = {attention + "q_proj", attention + "k_proj"};
  if (weights.shape.own_values) in.push_back(attention + "v_proj");
  weights.attention_in = loader.projection(in);
  weights.query_norm = loader.vector(attention + "q_norm.weight");
  weights.key_norm = loader.vector(attention + "k_norm.weight");
  weights.attention_out = loader.projection({attention + "o_proj"});
  weights.attention_norm = loader.vector(prefix + "post_attention_layernorm.weight");
  weights.dense_norm = loader.vector(prefix + "pre_feedforward_layernorm.weight");
  weights.dense_in = loader.projection({prefix + "mlp.gate_proj", prefix + "mlp.up_proj"});
  weights.dense_out = loader.projection({prefix + "mlp.down_proj"});
  weights.dense_out_norm = loader.vector(prefix + "post_feedforward_layernorm_1.weight");
  weights.router_norm = backend.load_vector(router_scale);
  weights.router = loader.projection({prefix + "router.proj"});
  weights.expert_factors = loader.vector(prefix + "router.per_expert_scale");
  weights.expert_norm = loader.vector(prefix + "pre_feedforward_layernorm_2.weight");
  weights.expert_in = loader.projection(experts.in);
  weights.expert_out = loader.projection({experts.out});
  weights.expert_out_norm = loader.vector(prefix + "post_feedforward_layernorm_2.weight");
  weights.out_norm = loader.vector(prefix + "post_feedforward_layernorm.weight");
  weights.factor = loader.values(prefix + "layer_scalar").front();
  return weights;
}

}  // namespace tensorfold::families::gemma4
