#include "families/nemotron_h/decoder.h"

#include <algorithm>
#include <cmath>

namespace tensorfold::families::nemotron_h {

using backend::Precision;
using backend::Project;
using backend::Tensor;

Decoder::Decoder(const Config& config, backend::Backend& backend, int32_t max_rows)
    : config_(config), backend_(backend) {
  const int64_t attention = config.query_width() + 2 * config.kv_width();
  projected_ = backend.allocate(max_rows, std::max(config.mamba_width(), attention), Precision::product);
  mixed_ = backend.allocate(max_rows, std::max(config.mamba.values(), config.query_width()), Precision::product);
  normed_ = backend.allocate(max_rows, config.hidden, Precision::product);
  logits_ = backend.allocate(max_rows, config.experts);
  inner_ = backend.allocate(max_rows, config.shared_width, Precision::product);
  shared_ = backend.allocate(max_rows, config.hidden);
}

void Decoder::layer(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const LayerWeights& weights,
                    Tensor x) const {
  if (const auto* recurrent = std::get_if<MambaWeights>(&weights.mixer)) {
    mamba(plan, cache, entry, *weights.norm, *recurrent, x);
  } else if (const auto* full = std::get_if<AttentionWeights>(&weights.mixer)) {
    attention(plan, cache, entry, *weights.norm, *full, x);
  } else {
    experts(plan, *weights.norm, std::get<ExpertWeights>(weights.mixer), x);
  }
}

// Spec 3.1: one product for gate, channels and time steps; convolution to grouped norm are one operation, since a row
// continues its parent's.
void Decoder::mamba(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const backend::Vector& norm,
                    const MambaWeights& weights, Tensor x) const {
  const int64_t values = config_.mamba.values();
  const int64_t channels = config_.mamba.channels();
  const Tensor in = projected_.view.columns(0, config_.mamba_width());
  const Tensor out = mixed_.view.columns(0, values);
  backend_.project(plan,
                   {.weights = weights.in.get(), .input = x, .norm = &norm, .epsilon = config_.epsilon, .output = in});
  backend_.mamba2(plan, {.cache = &cache,
                         .entry = entry,
                         .mixed = in.columns(values, channels),
                         .gate = in.columns(0, values),
                         .step = in.columns(values + channels, config_.mamba.heads),
                         .convolution = weights.convolution.get(),
                         .convolution_bias = weights.convolution_bias.get(),
                         .decay_log = weights.decay_log.get(),
                         .step_bias = weights.step_bias.get(),
                         .skip = weights.skip.get(),
                         .norm = weights.inner_norm.get(),
                         .epsilon = config_.epsilon,
                         .least_step = config_.least_step,
                         .most_step = config_.most_step,
                         .output = out});
  backend_.project(plan, {.weights = weights.out.get(), .input = out, .epilogue = Project::Epilogue::add, .output = x});
}

// Spec 4: no norms of heads and, whatever rope fields the config has, no rotation.
void Decoder::attention(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const backend::Vector& norm,
                        const AttentionWeights& weights, Tensor x) const {
  const int64_t queries = config_.query_width();
  const int64_t keys = config_.kv_width();
  const Tensor in = projected_.view.columns(0, queries + 2 * keys);
  const Tensor out = mixed_.view.columns(0, queries);
  backend_.project(plan,
                   {.weights = weights.in.get(), .input = x, .norm = &norm, .epsilon = config_.epsilon, .output = in});
  backend_.attention(plan, {.cache = &cache,
                            .entry = entry,
                            .query = in.columns(0, queries),
                            .key = in.columns(queries, keys),
                            .value = in.columns(queries + keys, keys),
                            .heads = config_.heads,
                            .kv_heads = config_.kv_heads,
                            .key_dim = config_.head_dim,
                            .value_dim = config_.head_dim,
                            .rotary = {},
                            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim))),
                            .output = out});
  backend_.project(plan, {.weights = weights.out.get(), .input = out, .epilogue = Project::Epilogue::add, .output = x});
}

// Spec 5: sigmoid scores, the correction for the choice only; the shared expert always, with weight 1.
void Decoder::experts(const backend::Plan& plan, const backend::Vector& norm, const ExpertWeights& weights,
                      Tensor x) const {
  backend_.rms_norm(plan, {.input = x, .weight = &norm, .epsilon = config_.epsilon, .output = normed_});
  backend_.project(plan, {.weights = weights.router.get(), .input = normed_, .output = logits_});
  backend_.project(plan, {.weights = weights.shared_up.get(),
                          .input = normed_,
                          .epilogue = Project::Epilogue::relu_squared,
                          .output = inner_});
  backend_.project(plan, {.weights = weights.shared_down.get(), .input = inner_, .output = shared_});
  backend_.experts(plan, {.input = normed_,
                          .logits = logits_,
                          .routing = {.scores = backend::Routing::Scores::sigmoid,
                                      .correction = weights.correction.get(),
                                      .chosen = config_.chosen,
                                      .normalise = config_.normalise,
                                      .factor = config_.routed_factor},
                          .in = weights.up.get(),
                          .out = weights.down.get(),
                          .activation = backend::Activation::relu_squared,
                          .shared = shared_,
                          .add = true,
                          .output = x});
}

namespace {

MambaWeights load_mamba(WeightLoader& loader, const std::string& mixer) {
  return {.in = loader.projection({mixer + "in_proj"}),
          .convolution = loader.vector(mixer + "conv1d.weight"),
          .convolution_bias = loader.vector(mixer + "conv1d.bias"),
          .decay_log = loader.vector(mixer + "A_log"),
          .step_bias = loader.vector(mixer + "dt_bias"),
          .skip = loader.vector(mixer + "D"),
          .inner_norm = loader.vector(mixer + "norm.weight"),
          .out = loader.projection({mixer + "out_proj"})};
}

ExpertWeights load_experts(WeightLoader& loader, const Config& config, const std::string& prefix, bool stacked) {
  const ExpertModules modules = expert_modules(config, prefix, stacked);
  const std::string mixer = prefix + "mixer.";
  return {.router = loader.projection({mixer + "gate"}),
          .correction = loader.vector(mixer + "gate.e_score_correction_bias"),
          .up = loader.projection(modules.up),
          .down = loader.projection(modules.down),
          .shared_up = loader.projection({mixer + "shared_experts.up_proj"}),
          .shared_down = loader.projection({mixer + "shared_experts.down_proj"})};
}

}  // namespace

LayerWeights load_layer(WeightLoader& loader, const Config& config, const std::string& prefix, LayerKind kind,
                        bool stacked) {
  LayerWeights layer;
  layer.norm = loader.vector(prefix + "norm.weight");
  const std::string mixer = prefix + "mixer.";
  switch (kind) {
    case LayerKind::mamba:
      layer.mixer = load_mamba(loader, mixer);
      break;
    case LayerKind::attention:
      layer.mixer = AttentionWeights{.in = loader.projection({mixer + "q_proj", mixer + "k_proj", mixer + "v_proj"}),
                                     .out = loader.projection({mixer + "o_proj"})};
      break;
    case LayerKind::experts:
      layer.mixer = load_experts(loader, config, prefix, stacked);
      break;
  }
  return layer;
}

}  // namespace tensorfold::families::nemotron_h
