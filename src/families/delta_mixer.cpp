#include "families/delta_mixer.h"

namespace tensorfold::families {

using backend::Project;
using backend::Tensor;

namespace {

/// Added to a query or key head's sum of squares, as transformers' model code has it and the weights were trained with.
/// MLX adds it to the mean, 128 times as much: on the demonstration model that moves logits by up to 5e-3.
constexpr float kKeySumEpsilon = 1e-6F;

}  // namespace

backend::GatedDeltaShape read_delta(ConfigFields& fields) {
  backend::GatedDeltaShape shape;
  shape.key_heads = fields.integer("linear_num_key_heads", 1, 4096);
  shape.value_heads = fields.integer("linear_num_value_heads", 1, 4096);
  shape.key_dim = fields.integer("linear_key_head_dim", 1, 4096);
  shape.value_dim = fields.integer("linear_value_head_dim", 1, 4096);
  shape.kernel = fields.integer("linear_conv_kernel_dim", 2, 16);
  if (shape.value_heads % shape.key_heads != 0)
    fields.problems().add("linear_num_key_heads does not divide linear_num_value_heads");
  return shape;
}

void list_delta(TensorList& list, const backend::GatedDeltaShape& shape, int64_t hidden) {
  const int64_t values = delta_value_width(shape);
  list.linear("linear_attn.in_proj_qkv", shape.channels(), hidden);
  list.linear("linear_attn.in_proj_z", values, hidden);
  list.linear("linear_attn.in_proj_b", shape.value_heads, hidden);
  list.linear("linear_attn.in_proj_a", shape.value_heads, hidden);
  list.linear("linear_attn.out_proj", hidden, values);
  list.vector("linear_attn.conv1d.weight", {shape.channels(), shape.kernel, 1}, 0.0F, 0.5F);
  list.vector("linear_attn.A_log", {shape.value_heads}, 0.5F, 1.5F);
  list.vector("linear_attn.dt_bias", {shape.value_heads}, -3.0F, 2.0F);
  list.vector("linear_attn.norm.weight", {shape.value_dim}, 1.0F, 0.1F);
}

DeltaWeights load_delta(WeightLoader& loader, const std::string& layer_prefix) {
  const std::string mixer = layer_prefix + "linear_attn.";
  return {
      .in = loader.projection({mixer + "in_proj_qkv", mixer + "in_proj_z", mixer + "in_proj_b", mixer + "in_proj_a"}),
      .convolution = loader.vector(mixer + "conv1d.weight"),
      .decay_log = loader.vector(mixer + "A_log"),
      .decay_bias = loader.vector(mixer + "dt_bias"),
      .inner_norm = loader.vector(mixer + "norm.weight"),  // a plain multiplier in every layout
      .out = loader.projection({mixer + "out_proj"})};
}

// Convolution, gates, gated delta rule and gated norm are one operation, since a row continues its parent's.
void run_delta(backend::Backend& backend, const backend::Plan& plan, const DeltaMixer& m) {
  const int64_t channels = m.shape.channels();
  const int64_t values = delta_value_width(m.shape);
  const int64_t heads = m.shape.value_heads;
  const Tensor in = m.projected.columns(0, delta_in_width(m.shape));
  const Tensor mixed = m.mixed.columns(0, values);
  backend.project(
      plan, {.weights = m.weights.in.get(), .input = m.input, .norm = m.norm, .epsilon = m.epsilon, .output = in});
  backend.gated_delta(plan, {.cache = &m.cache,
                             .entry = m.entry,
                             .mixed = in.columns(0, channels),
                             .gate = in.columns(channels, values),
                             .beta = in.columns(channels + values, heads),
                             .decay = in.columns(channels + values + heads, heads),
                             .convolution = m.weights.convolution.get(),
                             .decay_log = m.weights.decay_log.get(),
                             .decay_bias = m.weights.decay_bias.get(),
                             .norm = m.weights.inner_norm.get(),
                             .epsilon = m.epsilon,
                             .key_epsilon = kKeySumEpsilon / static_cast<float>(m.shape.key_dim),
                             .sigmoid_gate = m.sigmoid_gate,
                             .output = mixed});
  backend.project(plan, {.weights = m.weights.out.get(),
                         .input = mixed,
                         .epilogue = m.add ? Project::Epilogue::add : Project::Epilogue::store,
                         .output = m.output});
}

}  // namespace tensorfold::families
