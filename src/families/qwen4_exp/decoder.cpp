#include "families/qwen4_exp/decoder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "families/qwen4_exp/ngram_rows.h"

namespace tensorfold::families::qwen4_exp {

using backend::Precision;
using backend::Project;
using backend::Tensor;

namespace {

float inverse_root(int64_t width) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(width))); }

}  // namespace

LayerEntries add_entries(const Config& config, const std::string& name, bool attends, bool ngram,
                         backend::CacheLayout& layout) {
  LayerEntries entries;
  const auto add = [&](backend::CacheEntry entry) {
    layout.entries.push_back(std::move(entry));
    return static_cast<int32_t>(layout.entries.size()) - 1;
  };
  if (ngram) {
    const backend::DilatedConvolutionShape shape{config.stream_width(), config.ngram->kernel, config.ngram->longest};
    entries.ngram = add(backend::StateEntry{name + " n-grams", shape});
  }
  if (attends) {
    entries.mixer = add(backend::PagedEntry{name, 2 * config.kv_width()});
    entries.index = add(backend::PagedEntry{name + " index", config.index_dim});
  } else {
    entries.mixer = add(backend::StateEntry{name, config.delta});
  }
  return entries;
}

Decoder::Decoder(const Config& config, backend::Backend& backend, int32_t max_rows)
    : config_(config),
      backend_(backend),
      frequencies_(backend.load_vector(config.rotary.frequencies())),
      selection_(backend.make_selection(max_rows, config.index_chosen, config.index_block)) {
  const auto rows = [&](int64_t width, Precision precision = Precision::product) {
    return backend.allocate(max_rows, width, precision);
  };
  input_ = rows(config.hidden, Precision::full);  // the router reads it
  branch_ = rows(config.hidden);
  gates_ = rows(config.streams, Precision::full);
  projected_ = rows(std::max(config.attention_width(), delta_in_width(config.delta)));
  mixed_ = rows(std::max(config.query_width(), delta_value_width(config.delta)));
  logits_ = rows(config.experts, Precision::full);
  inner_ = rows(config.shared_width);
  shared_ = rows(config.hidden);
  shared_gate_ = rows(1, Precision::full);
  if (!config.ngram) return;
  ngrams_ = rows(config.ngram->width);
  keys_ = rows(config.stream_width());
  value_ = rows(config.hidden);
}

void Decoder::layer(const backend::Plan& plan, backend::Cache& cache, const LayerEntries& entries,
                    const LayerWeights& weights, Tensor h) const {
  const auto write = [&] { backend_.hyper_connection_write(plan, {.streams = h, .branch = branch_, .gates = gates_}); };
  if (weights.ngram) ngram(plan, cache, entries.ngram, *weights.ngram, h);
  read(plan, weights.mixer_connection, h, gates_);
  if (const auto* sparse = std::get_if<SparseWeights>(&weights.mixer)) {
    attention(plan, cache, entries, *sparse);
  } else {
    run_delta(backend_, plan,
              {.weights = std::get<DeltaWeights>(weights.mixer),
               .shape = config_.delta,
               .cache = cache,
               .entry = entries.mixer,
               .input = input_,
               .epsilon = config_.epsilon,
               .sigmoid_gate = config_.sigmoid_gate,
               .projected = projected_,
               .mixed = mixed_,
               .output = branch_});
  }
  write();
  read(plan, weights.expert_connection, h, gates_);
  experts(plan, weights.experts);
  write();
}

void Decoder::read(const backend::Plan& plan, const HyperConnectionWeights& weights, Tensor h, Tensor gates) const {
  backend_.hyper_connection_read(plan, {.streams = h,
                                        .norm = weights.norm.get(),
                                        .epsilon = config_.epsilon,
                                        .down = weights.down.get(),
                                        .up = weights.up.get(),
                                        .output = input_,
                                        .gates = gates});
}

Tensor Decoder::read_out(const backend::Plan& plan, const HyperConnectionWeights& weights, Tensor h) const {
  read(plan, weights, h, {});
  return input_;
}

// Spec 3.3: the tokens' rows, their two products, and the gated branch with its convolution.
void Decoder::ngram(const backend::Plan& plan, backend::Cache& cache, int32_t entry, const NgramWeights& weights,
                    Tensor h) const {
  backend_.ngram_embed(plan, *weights.table, ngrams_);
  backend_.project(plan, {.weights = weights.key.get(), .input = ngrams_, .output = keys_});
  backend_.project(plan, {.weights = weights.value.get(), .input = ngrams_, .output = value_});
  backend_.ngram_branch(plan, {.cache = &cache,
                               .entry = entry,
                               .streams = h,
                               .key = keys_,
                               .value = value_,
                               .key_norm = weights.key_norm.get(),
                               .query_norm = weights.query_norm.get(),
                               .conv_norm = weights.conv_norm.get(),
                               .epsilon = config_.epsilon,
                               .convolution = weights.convolution.get()});
}

// Spec 3.5: one product for the attention and its indexer; the indexer chooses blocks, the attention reads them.
void Decoder::attention(const backend::Plan& plan, backend::Cache& cache, const LayerEntries& entries,
                        const SparseWeights& weights) const {
  const int64_t queries = 2 * config_.query_width();
  const int64_t keys = config_.kv_width();
  const int64_t index_queries = 1LL * config_.index_heads * config_.index_dim;
  const Tensor in = projected_.view.columns(0, config_.attention_width());
  const Tensor index = in.columns(queries + 2 * keys, config_.index_width());
  const Tensor out = mixed_.view.columns(0, config_.query_width());
  backend_.project(plan, {.weights = weights.in.get(), .input = input_, .output = in});
  backend_.block_index(plan, {.cache = &cache,
                              .entry = entries.index,
                              .block = config_.index_block,
                              .chosen = config_.index_chosen,
                              .heads = config_.index_heads,
                              .key_dim = config_.index_dim,
                              .query = index.columns(0, index_queries),
                              .query_norm = weights.index_query_norm.get(),
                              .key = index.columns(index_queries, config_.index_dim),
                              .pooled_norm = weights.index_key_norm.get(),
                              .epsilon = config_.epsilon,
                              .rotary = {.frequencies = frequencies_.get()},
                              .scale = inverse_root(config_.index_dim),
                              .selection = selection_.get()});
  backend_.attention(plan, {.cache = &cache,
                            .entry = entries.mixer,
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
                            .scale = inverse_root(config_.head_dim),
                            .gated = true,
                            .output = out,
                            .selection = selection_.get()});
  backend_.project(plan, {.weights = weights.out.get(), .input = out, .output = branch_});
}

// Spec 3.6: softmax over all experts, divided by the sum of the chosen; the shared expert behind a gate of its own.
void Decoder::experts(const backend::Plan& plan, const ExpertWeights& weights) const {
  backend_.project(plan, {.weights = weights.router.get(), .input = input_, .output = logits_});
  backend_.project(
      plan,
      {.weights = weights.shared_in.get(), .input = input_, .epilogue = Project::Epilogue::swiglu, .output = inner_});
  backend_.project(plan, {.weights = weights.shared_out.get(), .input = inner_, .output = shared_});
  backend_.project(plan, {.weights = weights.shared_gate.get(), .input = input_, .output = shared_gate_});
  backend_.experts(plan, {.input = input_,
                          .logits = logits_,
                          .routing = {.scores = backend::Routing::Scores::softmax,
                                      .chosen = config_.chosen,
                                      .normalise = config_.normalise},
                          .in = weights.in.get(),
                          .out = weights.out.get(),
                          .activation = backend::Activation::swiglu,
                          .shared = shared_,
                          .shared_gate = shared_gate_,
                          .output = branch_});
}

HyperConnectionWeights load_hyper_connection(WeightLoader& loader, const std::string& module, float shift,
                                             bool inject) {
  std::vector<std::string> down = {module + ".input_mix_weight_down"};
  if (inject) down.push_back(module + ".block_inject_weight");
  return {.norm = loader.vector(module + ".hc_norm.weight", shift),
          .down = loader.projection(down),
          .up = loader.projection({module + ".input_mix_weight_up"})};
}

namespace {

SparseWeights load_attention(WeightLoader& loader, const std::string& prefix, float shift) {
  const std::string mixer = prefix + "self_attn.";
  const std::string index = mixer + "indexer.";
  return {.in = loader.projection({mixer + "q_proj", mixer + "k_proj", mixer + "v_proj", index + "index_qk_proj"}),
          .query_norm = loader.vector(mixer + "q_norm.weight", shift),
          .key_norm = loader.vector(mixer + "k_norm.weight", shift),
          .index_query_norm = loader.vector(index + "q_layernorm.weight", shift),
          .index_key_norm = loader.vector(index + "k_layernorm.weight", shift),
          .out = loader.projection({mixer + "o_proj"})};
}

ExpertWeights load_experts(WeightLoader& loader, const Config& config, const std::string& prefix,
                           ExpertSpelling spelling) {
  const ExpertModules modules = expert_modules(config, prefix, spelling);
  const std::string mlp = prefix + "mlp.";
  return {.router = loader.projection({mlp + "gate"}),
          .in = loader.projection(modules.in),
          .out = loader.projection(modules.out),
          .shared_in = loader.projection({mlp + "shared_expert.gate_proj", mlp + "shared_expert.up_proj"}),
          .shared_out = loader.projection({mlp + "shared_expert.down_proj"}),
          .shared_gate = loader.projection({mlp + "shared_expert_gate"})};
}

}  // namespace

LayerWeights load_layer(WeightLoader& loader, const Config& config, const std::string& prefix, bool attends,
                        ExpertSpelling spelling, float shift) {
  LayerWeights layer;
  layer.mixer_connection = load_hyper_connection(loader, prefix + "attn_hyper_connection", shift, true);
  if (attends) {
    layer.mixer = load_attention(loader, prefix, shift);
  } else {
    layer.mixer = load_delta(loader, prefix);
  }
  layer.expert_connection = load_hyper_connection(loader, prefix + "mlp_hyper_connection", shift, true);
  layer.experts = load_experts(loader, config, prefix, spelling);
  return layer;
}

NgramWeights load_ngram(WeightLoader& loader, const Config& config, const std::string& layer_prefix, float shift) {
  const std::string prefix = ngram_prefix(layer_prefix);
  const backend::NgramHashing hashing = derive_hashing(*config.ngram, config.vocabulary);
  const auto compare = [&](const char* name, const std::vector<int64_t>& derived) {
    const std::string full = prefix + "ple_embedding." + name;
    if (loader.integers(full).value_or(derived) == derived) return;
    fail(ErrorKind::corrupt_file, "{} does not hold the hash constants that follow from config.json", full);
  };
  compare("layer_multipliers", hashing.multipliers);
  compare("ngram_heads_vocab_sizes", hashing.sizes);
  compare("ngram_heads_offsets", hashing.offsets);
  return {.table = loader.ngram_table(hashing, ngram_modules(*config.ngram, layer_prefix)),
          .key = loader.projection({prefix + "key_proj"}),
          .value = loader.projection({prefix + "value_proj"}),
          .key_norm = loader.vector(prefix + "norm_key.weight", shift),
          .query_norm = loader.vector(prefix + "norm_query.weight", shift),
          .conv_norm = loader.vector(prefix + "norm_conv.weight", shift),
          .convolution = loader.vector(prefix + "conv1d.weight")};
}

}  // namespace tensorfold::families::qwen4_exp
