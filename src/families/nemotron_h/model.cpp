#include "families/nemotron_h/model.h"

#include <nlohmann/json.hpp>

#include "format/config.h"

namespace tensorfold::families::nemotron_h {

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

void NemotronModel::layer(const backend::Plan& plan, backend::Cache& cache, size_t index, Tensor x) {
  decoder_.layer(plan, cache, entries_[index], layers_[index], x);
}

backend::CacheLayout NemotronModel::cache_layout() const { return list_caches(config_); }

void MtpHead::layers(const backend::Plan& plan, backend::Cache& cache, Tensor x) {
  decoder_.layer(plan, cache, 0, attention_, x);
  decoder_.layer(plan, cache, -1, experts_, x);
}

backend::CacheLayout MtpHead::cache_layout() const {
  return {{backend::PagedEntry{"mtp layer 0", 2 * decoder_.config().kv_width()}}};
}

MtpHead::MtpHead(WeightLoader& loader, const Layout& layout, const Decoder& decoder, const FrameWeights& frame,
                 backend::Backend& backend, int32_t max_rows)
    : JoinedDraftHead({.embedding_norm = loader.vector(*layout.mtp + "layers.0.enorm.weight"),
                       .hidden_norm = loader.vector(*layout.mtp + "layers.0.hnorm.weight"),
                       .final_norm = loader.vector(*layout.mtp + "layers.1.final_layernorm.weight"),
                       .join = loader.projection({*layout.mtp + "layers.0.eh_proj"})},
                      frame, backend, max_rows, decoder.config().hidden),
      decoder_(decoder),
      attention_(load_layer(loader, decoder.config(), *layout.mtp + "layers.0.", LayerKind::attention, true)),
      experts_(
          load_layer(loader, decoder.config(), *layout.mtp + "layers.1.", LayerKind::experts, layout.mtp_stacked)) {}

NemotronModel::NemotronModel(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                             int32_t max_rows)
    : FramedModel(describe(config), backend, max_rows),
      config_(parse_config(config)),
      decoder_(config_, backend, max_rows) {
  int32_t entry = 0;
  for (const LayerKind kind : config_.layers) entries_.push_back(kind == LayerKind::experts ? -1 : entry++);
  load(store, format::Quantization::parse(config));
}

void NemotronModel::load(const format::TensorStore& store, const format::Quantization& quantization) {
  const Layout layout = find_layout(store.names());
  const std::vector<TensorSpec> inventory = list_tensors(config_, layout);
  WeightLoader loader(inventory, store, quantization, backend_);
  frame_.epsilon = config_.epsilon;
  frame_.embedding = loader.embedding(layout.root + "embeddings");
  for (size_t layer = 0; layer < config_.layers.size(); ++layer)
    layers_.push_back(load_layer(loader, config_, layout.layer(layer), config_.layers[layer], layout.stacked));
  frame_.final_norm = loader.vector(layout.root + "norm_f.weight");
  frame_.head = loader.projection({config_.tied ? layout.root + "embeddings" : layout.head});
  info_.decode_bytes = static_cast<int64_t>(loader.projection_bytes());
  info_.draft_head = config_.mtp && layout.mtp.has_value();
  if (info_.draft_head) {
    mtp_ = std::make_unique<MtpHead>(loader, layout, decoder_, frame_, backend_, max_rows());
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
  if (config.mtp_layers > 0 && !config.mtp)
    info.notes.emplace_back("the draft head is not used: those of one attention and one expert layer are");
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
          .load = load_as<NemotronModel>};
}

}  // namespace tensorfold::families::nemotron_h
