#include "families/glm5_next/decoder.h"

#include <algorithm>
#include <cmath>

namespace tensorfold::families::glm5_next {

using backend::Precision;
using backend::Project;
using backend::Tensor;

namespace {

/// Of the index keys' LayerNorm, which the config does not name (spec 6.5).
constexpr float kIndexEpsilon = 1e-6F;
/// Under the root of a delta query's or key's sum of squares (spec 6.3, 4).
constexpr float kDeltaEpsilon = 1e-6F;

int64_t delta_width(const Config& config) {
  return config.delta.channels() + 2LL * config.delta.dim + config.delta.heads;
}
int64_t attention_width(const Config& config) {
  return config.query_rank + config.latent + 2LL * config.index_dim + config.index_heads;
}
int64_t query_width(const Config& config) { return 1LL * config.heads * config.key_dim; }
int64_t index_query_width(const Config& config) { return 1LL * config.index_heads * config.index_dim; }
int64_t value_width(const Config& config) { return 1LL * config.heads * config.value_dim; }

Project::Epilogue last_step(bool add) { return add ? Project::Epilogue::add : Project::Epilogue::store; }

}  // namespace

Decoder::Decoder(const Config& config, backend::Backend& backend, int32_t max_rows)
    : config_(config),
      backend_(backend),
      ones_(backend.load_vector(std::vector<float>(static_cast<size_t>(config.residual()), 1.0F))) {
  const auto rows = [&](int64_t width) { return backend.allocate(max_rows, width, Precision::product); };
  stream_weights_ = backend.allocate(max_rows, config.stream_weights());
  collected_ = backend.allocate(max_rows, config.hidden);
  branch_ = backend.allocate(max_rows, config.hidden);
  projected_ = rows(std::max(delta_width(config), attention_width(config)));
  queries_ = rows(std::max(2 * config.delta.values(), query_width(config) + index_query_width(config)));
  mixed_ = rows(std::max(config.delta.values(), value_width(config)));
  normed_ = rows(config.hidden);
  logits_ = backend.allocate(max_rows, config.experts);
  inner_ = rows(std::max(config.intermediate, config.shared_width));
  shared_ = backend.allocate(max_rows, config.hidden);
  selection_ = backend.make_selection(max_rows, config.chosen, config.block);
}

// Spec 6.2: both halves of a layer read one row collected from the streams and give their output back to all of them.
void Decoder::layer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
                    Tensor x) const {
  enter(plan, *weights.mixer_site, x);
  mixer(plan, cache, entry, weights, {collected_, weights.mixer_norm.get(), branch_, false});
  leave(plan, x);
  enter(plan, *weights.mlp_site, x);
  mlp(plan, weights, {collected_, weights.mlp_norm.get(), branch_, false});
  leave(plan, x);
}

void Decoder::plain_layer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
                          Tensor x) const {
  mixer(plan, cache, entry, weights, {x, weights.mixer_norm.get(), x, true});
  mlp(plan, weights, {x, weights.mlp_norm.get(), x, true});
}

void Decoder::enter(const backend::Plan& plan, const StreamSite& site, Tensor x) const {
  backend_.project(plan, {.weights = site.products.get(),
                          .input = x,
                          .norm = ones_.get(),
                          .epsilon = config_.epsilon,
                          .output = stream_weights_});
  backend_.stream_weights(plan, {.raw = stream_weights_,
                                 .base = site.base.get(),
                                 .scale = site.scale.get(),
                                 .streams = config_.streams,
                                 .epsilon = config_.stream_epsilon,
                                 .rounds = config_.stream_rounds,
                                 .weights = stream_weights_});
  backend_.stream_read(plan, {.streams = x, .weights = stream_weights_, .output = collected_});
}

void Decoder::leave(const backend::Plan& plan, Tensor x) const {
  backend_.stream_write(plan, {.streams = x, .weights = stream_weights_, .branch = branch_});
}

void Decoder::mixer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
                    const Branch& branch) const {
  if (const auto* recurrent = std::get_if<DeltaWeights>(&weights.mixer)) {
    delta(plan, cache, entry, *recurrent, branch);
  } else {
    attention(plan, cache, entry, std::get<AttentionWeights>(weights.mixer), branch);
  }
}

// Spec 6.3: one product for everything that reads the row; decays and gates pass through a low rank.
void Decoder::delta(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const DeltaWeights& weights,
                    const Branch& branch) const {
  const backend::KimiDeltaShape& shape = config_.delta;
  const int64_t channels = shape.channels();
  const Tensor in = projected_.view.columns(0, delta_width(config_));
  const Tensor decays = queries_.view.columns(0, shape.values());
  const Tensor gates = queries_.view.columns(shape.values(), shape.values());
  const Tensor out = mixed_.view.columns(0, shape.values());
  backend_.project(plan, {.weights = weights.in.get(),
                          .input = branch.input,
                          .norm = branch.norm,
                          .epsilon = config_.epsilon,
                          .output = in});
  backend_.project(plan, {.weights = weights.decay.get(), .input = in.columns(channels, shape.dim), .output = decays});
  backend_.project(
      plan, {.weights = weights.gate.get(), .input = in.columns(channels + shape.dim, shape.dim), .output = gates});
  backend_.kimi_delta(plan, {.cache = &cache,
                             .entry = entry,
                             .mixed = in.columns(0, channels),
                             .gate = gates,
                             .beta = in.columns(channels + 2LL * shape.dim, shape.heads),
                             .decay = decays,
                             .convolution = weights.convolution.get(),
                             .decay_log = weights.decay_log.get(),
                             .decay_bias = weights.decay_bias.get(),
                             .lower_bound = config_.lower_bound,
                             .norm = weights.inner_norm.get(),
                             .epsilon = config_.epsilon,
                             .key_epsilon = kDeltaEpsilon / static_cast<float>(shape.dim),
                             .output = out});
  backend_.project(
      plan, {.weights = weights.out.get(), .input = out, .epilogue = last_step(branch.add), .output = branch.output});
}

// Spec 6.4 and 6.5: no positions; what a row attends to is its index's choice.
void Decoder::attention(const backend::Plan& plan, backend::Cache& cache, int32_t entry,
                        const AttentionWeights& weights, const Branch& branch) const {
  const Tensor in = projected_.view.columns(0, attention_width(config_));
  const Tensor latent = in.columns(config_.query_rank, config_.latent);
  const int64_t index_columns = config_.query_rank + config_.latent;
  const Tensor index_key = in.columns(index_columns, config_.index_dim);
  const Tensor queries = queries_.view.columns(0, query_width(config_) + index_query_width(config_));
  const Tensor out = mixed_.view.columns(0, value_width(config_));
  backend_.project(plan, {.weights = weights.in.get(),
                          .input = branch.input,
                          .norm = branch.norm,
                          .epsilon = config_.epsilon,
                          .output = in});
  backend_.rms_norm(
      plan, {.input = latent, .weight = weights.latent_norm.get(), .epsilon = config_.epsilon, .output = latent});
  backend_.layer_norm(plan, {.input = index_key,
                             .weight = weights.index_norm.get(),
                             .bias = weights.index_norm_bias.get(),
                             .epsilon = kIndexEpsilon,
                             .output = index_key});
  backend_.project(plan, {.weights = weights.queries.get(),
                          .input = in.columns(0, config_.query_rank),
                          .norm = weights.query_norm.get(),
                          .epsilon = config_.epsilon,
                          .output = queries});
  backend_.block_index(plan,
                       {.cache = &cache,
                        .entry = entry + 1,
                        .block = config_.block,
                        .chosen = config_.chosen,
                        .heads = config_.index_heads,
                        .key_dim = config_.index_dim,
                        .query = queries.columns(query_width(config_), index_query_width(config_)),
                        .key = index_key,
                        .gate = in.columns(index_columns + config_.index_dim, config_.index_dim),
                        .gate_position = weights.index_positions.get(),
                        .weight = in.columns(index_columns + 2LL * config_.index_dim, config_.index_heads),
                        .weight_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.index_heads))),
                        .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.index_dim))),
                        .selection = selection_.get()});
  backend_.latent_attention(plan, {.cache = &cache,
                                   .entry = entry,
                                   .query = queries.columns(0, query_width(config_)),
                                   .latent = latent,
                                   .heads = config_.heads,
                                   .key_dim = config_.key_dim,
                                   .value_dim = config_.value_dim,
                                   .joined = weights.joined.get(),
                                   .absorb = weights.absorb.get(),
                                   .expand = weights.expand.get(),
                                   .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.key_dim))),
                                   .selection = selection_.get(),
                                   .output = out});
  backend_.project(
      plan, {.weights = weights.out.get(), .input = out, .epilogue = last_step(branch.add), .output = branch.output});
}

void Decoder::mlp(const backend::Plan& plan, const LayerWeights& weights, const Branch& branch) const {
  if (const auto* plain = std::get_if<DenseWeights>(&weights.mlp)) {
    dense(plan, *plain, branch);
  } else {
    experts(plan, std::get<ExpertWeights>(weights.mlp), branch);
  }
}

// Spec 6.6: the gate is clamped above, the up value on both sides, before SiLU and product.
void Decoder::dense(const backend::Plan& plan, const DenseWeights& weights, const Branch& branch) const {
  const Tensor inner = inner_.view.columns(0, weights.out->inputs());
  backend_.project(plan, {.weights = weights.in.get(),
                          .input = branch.input,
                          .norm = branch.norm,
                          .epsilon = config_.epsilon,
                          .epilogue = Project::Epilogue::swiglu,
                          .limit = config_.limit,
                          .output = inner});
  backend_.project(
      plan, {.weights = weights.out.get(), .input = inner, .epilogue = last_step(branch.add), .output = branch.output});
}

// Spec 6.7: sigmoid scores, the correction for the choice only; the shared expert with weight 1, outside the factor.
void Decoder::experts(const backend::Plan& plan, const ExpertWeights& weights, const Branch& branch) const {
  backend_.rms_norm(plan,
                    {.input = branch.input, .weight = branch.norm, .epsilon = config_.epsilon, .output = normed_});
  backend_.project(plan, {.weights = weights.router.get(), .input = normed_, .output = logits_});
  dense(plan, weights.shared, {normed_, nullptr, shared_, false});
  backend_.experts(plan, {.input = normed_,
                          .logits = logits_,
                          .routing = {.scores = backend::Routing::Scores::sigmoid,
                                      .correction = weights.correction.get(),
                                      .chosen = config_.chosen_experts,
                                      .normalise = config_.normalise,
                                      .factor = config_.routed_factor},
                          .in = weights.in.get(),
                          .out = weights.out.get(),
                          .activation = backend::Activation::swiglu,
                          .limit = config_.limit,
                          .shared = shared_,
                          .add = branch.add,
                          .output = branch.output});
}

namespace {

DeltaWeights load_delta(WeightLoader& loader, backend::Backend& backend, const Layout& layout,
                        const std::string& prefix) {
  const std::string mixer = prefix + "self_attn.";
  const std::string decay = prefix + layout.decay();
  std::vector<float> taps;
  for (const std::string& name : convolution_names(layout, prefix)) {
    const std::vector<float> part = loader.values(name);
    taps.insert(taps.end(), part.begin(), part.end());
  }
  std::vector<float> decay_log = loader.values(layout.exponentiated ? mixer + "A" : decay + "A_log");
  for (float& value : decay_log) value = layout.exponentiated ? std::log(value) : value;
  return {.in = loader.projection({mixer + "q_proj", mixer + "k_proj", mixer + "v_proj", decay + "f_a_proj",
                                   mixer + "g_a_proj", mixer + "b_proj"}),
          .decay = loader.projection({decay + "f_b_proj"}),
          .gate = loader.projection({mixer + "g_b_proj"}),
          .convolution = backend.load_vector(taps),
          .decay_log = backend.load_vector(decay_log),
          .decay_bias = loader.vector(decay + "dt_bias"),
          .inner_norm = loader.vector(mixer + "o_norm.weight"),
          .out = loader.projection({mixer + "o_proj"})};
}

AttentionWeights load_attention(WeightLoader& loader, const Layout& layout, const std::string& prefix) {
  const std::string mixer = prefix + "self_attn.";
  const std::string index = mixer + "indexer.";
  AttentionWeights weights;
  weights.in = loader.projection({mixer + "q_a_proj", mixer + "kv_a_proj_with_mqa", index + "wk",
                                  index + "index_kpool_compress_gate", index + "weights_proj"});
  weights.query_norm = loader.vector(mixer + "q_a_layernorm.weight");
  weights.latent_norm = loader.vector(mixer + "kv_a_layernorm.weight");
  weights.index_norm = loader.vector(index + "k_norm.weight");
  weights.index_norm_bias = loader.vector(index + "k_norm.bias");
  weights.index_positions = loader.vector(index + "index_kpool_compress_ape");
  weights.queries = loader.projection({mixer + "q_b_proj", index + "wq_b"});
  if (layout.renamed) {
    weights.absorb = loader.projection({mixer + "embed_q"});
    weights.expand = loader.projection({mixer + "unembed_out"});
  } else {
    weights.joined = loader.projection({mixer + "kv_b_proj"});
  }
  weights.out = loader.projection({mixer + "o_proj"});
  return weights;
}

DenseWeights load_dense(WeightLoader& loader, const std::string& mlp) {
  return {.in = loader.projection({mlp + "gate_proj", mlp + "up_proj"}), .out = loader.projection({mlp + "down_proj"})};
}

ExpertWeights load_experts(WeightLoader& loader, const Config& config, const Layout& layout,
                           const std::string& prefix) {
  const ExpertModules modules = expert_modules(config, layout, prefix);
  return {.router = loader.projection({prefix + "mlp.gate"}),
          .correction = loader.vector(prefix + "mlp.gate.e_score_correction_bias"),
          .in = loader.projection(modules.in),
          .out = loader.projection(modules.out),
          .shared = load_dense(loader, prefix + "mlp.shared_experts.")};
}

StreamSite load_site(WeightLoader& loader, const Layout& layout, const std::string& prefix, const char* site) {
  return {.products = loader.projection({prefix + layout.streams(site, "fn")}),
          .base = loader.vector(prefix + layout.streams(site, "base")),
          .scale = loader.vector(prefix + layout.streams(site, "scale"))};
}

}  // namespace

LayerWeights load_layer(WeightLoader& loader, backend::Backend& backend, const Config& config, const Layout& layout,
                        const std::string& prefix, LayerKind kind, bool streams) {
  LayerWeights layer;
  layer.mixer_norm = loader.vector(prefix + "input_layernorm.weight");
  layer.mlp_norm = loader.vector(prefix + "post_attention_layernorm.weight");
  if (kind.attends) {
    layer.mixer = load_attention(loader, layout, prefix);
  } else {
    layer.mixer = load_delta(loader, backend, layout, prefix);
  }
  if (kind.sparse) {
    layer.mlp = load_experts(loader, config, layout, prefix);
  } else {
    layer.mlp = load_dense(loader, prefix + "mlp.");
  }
  if (streams) {
    layer.mixer_site = load_site(loader, layout, prefix, "attn");
    layer.mlp_site = load_site(loader, layout, prefix, "ffn");
  }
  return layer;
}

}  // namespace tensorfold::families::glm5_next
