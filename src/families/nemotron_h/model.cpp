#include "families/nemotron_h/model.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "format/config.h"

namespace tensorfold::families::nemotron_h {

using backend::RowSet;
using backend::Tensor;

namespace {

/// One entry a layer that remembers anything, in order.
backend::CacheLayout list_caches(const Config& config) {
  backend::CacheLayout layout;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const std::string name = "layer " + std::to_string(layer);
    if (config.layers[layer] == LayerKind::mamba) layout.entries.emplace_back(backend::StateEntry{name, config.mamba});
    if (config.layers[layer] == LayerKind::attention)
      layout.entries.emplace_back(backend::PagedEntry{name, 2 * config.kv_width()});
  }
  return layout;
}

}  // namespace

// The forward in one page: embed; every layer; final norm and head. The logits always come from the residual stream by
// the same fused norm and product, whatever else is asked for, so no output changes another's bits.
void NemotronModel::forward(const backend::Plan& plan, backend::Cache& cache, const ForwardOutputs& outputs) {
  check(plan.rows() <= max_rows_, "a plan has no more rows than the model was loaded for");
  backend_.embed(plan, *embedding_, 1.0F, x_);
  int32_t entry = 0;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const bool remembers = config_.layers[layer] != LayerKind::experts;
    decoder_.layer(plan, cache, remembers ? entry++ : -1, layers_[layer], x_);
    for (size_t tap = 0; outputs.taps && tap < outputs.tap_layers.size(); ++tap) {
      if (outputs.tap_layers[tap] != static_cast<int32_t>(layer)) continue;
      backend_.copy(plan, x_, outputs.taps.columns(static_cast<int64_t>(tap) * config_.hidden, config_.hidden));
    }
  }
  if (outputs.hidden) {
    backend_.rms_norm(plan,
                      {.input = x_, .weight = final_norm_.get(), .epsilon = config_.epsilon, .output = outputs.hidden});
  }
  if (outputs.logits && !plan.logit_rows.empty()) {
    backend_.project(plan, {.weights = head_.get(),
                            .input = x_,
                            .norm = final_norm_.get(),
                            .epsilon = config_.epsilon,
                            .output = outputs.logits,
                            .rows = RowSet::logits});
  }
}

void NemotronModel::embed(const backend::Plan& plan, Tensor output) { backend_.embed(plan, *embedding_, 1.0F, output); }

void NemotronModel::head(const backend::Plan& plan, Tensor normed, Tensor logits) {
  backend_.project(plan, {.weights = head_.get(), .input = normed, .output = logits, .rows = RowSet::logits});
}

backend::CacheLayout NemotronModel::cache_layout() const { return list_caches(config_); }

void MtpHead::forward(const backend::Plan& plan, backend::Cache& cache, Tensor hidden, Tensor hidden_output,
                      Tensor logits) {
  backend::Backend& backend = shared_.backend;
  const int64_t width = shared_.config.hidden;
  const float epsilon = shared_.config.epsilon;
  backend.embed(plan, shared_.embedding, 1.0F, x_);
  backend.rms_norm(
      plan,
      {.input = x_, .weight = embedding_norm_.get(), .epsilon = epsilon, .output = joined_.view.columns(0, width)});
  backend.rms_norm(plan, {.input = hidden,
                          .weight = hidden_norm_.get(),
                          .epsilon = epsilon,
                          .output = joined_.view.columns(width, width)});
  backend.project(plan, {.weights = join_.get(), .input = joined_, .output = x_});
  shared_.decoder.layer(plan, cache, 0, attention_, x_);
  shared_.decoder.layer(plan, cache, -1, experts_, x_);
  if (hidden_output) {
    backend.rms_norm(plan, {.input = x_, .weight = final_norm_.get(), .epsilon = epsilon, .output = hidden_output});
  }
  if (logits && !plan.logit_rows.empty()) {
    backend.project(plan, {.weights = &shared_.head,
                           .input = x_,
                           .norm = final_norm_.get(),
                           .epsilon = epsilon,
                           .output = logits,
                           .rows = RowSet::logits});
  }
}

backend::CacheLayout MtpHead::cache_layout() const {
  return {{backend::PagedEntry{"mtp layer 0", 2 * shared_.config.kv_width()}}};
}

MtpHead::MtpHead(WeightLoader& loader, const Layout& layout, const SharedWeights& shared, int32_t max_rows)
    : shared_(shared),
      embedding_norm_(loader.vector(*layout.mtp + "layers.0.enorm.weight")),
      hidden_norm_(loader.vector(*layout.mtp + "layers.0.hnorm.weight")),
      final_norm_(loader.vector(*layout.mtp + "layers.1.final_layernorm.weight")),
      join_(loader.projection({*layout.mtp + "layers.0.eh_proj"})),
      attention_(load_layer(loader, shared.config, *layout.mtp + "layers.0.", LayerKind::attention, true)),
      experts_(load_layer(loader, shared.config, *layout.mtp + "layers.1.", LayerKind::experts, layout.mtp_stacked)),
      joined_(shared.backend.allocate(max_rows, 2LL * shared.config.hidden)),
      x_(shared.backend.allocate(max_rows, shared.config.hidden)) {}

NemotronModel::NemotronModel(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                             int32_t max_rows)
    : info_(describe(config)),
      config_(parse_config(config)),
      backend_(backend),
      max_rows_(max_rows),
      decoder_(config_, backend, max_rows),
      x_(backend.allocate(max_rows, config_.hidden)) {
  load(store, format::Quantization::parse(config));
}

void NemotronModel::load(const format::TensorStore& store, const format::Quantization& quantization) {
  const Layout layout = find_layout(store.names());
  const std::vector<TensorSpec> inventory = list_tensors(config_, layout);
  WeightLoader loader(inventory, store, quantization, backend_);
  embedding_ = loader.embedding(layout.root + "embeddings");
  for (size_t layer = 0; layer < config_.layers.size(); ++layer)
    layers_.push_back(load_layer(loader, config_, layout.layer(layer), config_.layers[layer], layout.stacked));
  final_norm_ = loader.vector(layout.root + "norm_f.weight");
  head_ = loader.projection({config_.tied ? layout.root + "embeddings" : layout.head});
  info_.decode_bytes = static_cast<int64_t>(loader.projection_bytes());
  info_.draft_head = config_.mtp && layout.mtp.has_value();
  if (info_.draft_head) {
    const SharedWeights shared{config_, backend_, decoder_, *embedding_, *head_};
    mtp_ = std::make_unique<MtpHead>(loader, layout, shared, max_rows_);
  }
}

ModelInfo describe(const nlohmann::json& json) {
  const Config config = parse_config(json);
  ModelInfo info;
  info.model_type = "nemotron_h";
  info.title = "Nemotron-H";
  info.vocabulary_size = config.vocabulary;
  info.hidden_size = config.hidden;
  info.layers = static_cast<int32_t>(config.layers.size());
  info.native_context = config.native_context;
  info.end_tokens = format::end_tokens(json);
  info.draft_head = config.mtp;
  Layout layout;
  layout.mtp.reset();
  const auto bytes = count_bytes(list_tensors(config, layout), format::Quantization::parse(json));
  info.decode_bytes = static_cast<int64_t>(bytes.read);
  return info;
}

Family family() {
  return {.model_type = "nemotron_h",
          .title = "Nemotron-H (Nemotron 3.5 Lightning and relatives)",
          .aliases = {},
          .describe = describe,
          .cache_layout = [](const nlohmann::json& config) { return list_caches(parse_config(config)); },
          .inventory =
              [](const nlohmann::json& config, std::span<const std::string> names) {
                return list_tensors(parse_config(config), find_layout(names));
              },
          .skipped = skipped_tensors(),
          .load = [](const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                     int32_t max_rows) -> std::unique_ptr<Model> {
            return std::make_unique<NemotronModel>(config, store, backend, max_rows);
          }};
}

}  // namespace tensorfold::families::nemotron_h
