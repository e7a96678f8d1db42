#include "families/glm5_next/model.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "format/config.h"

namespace tensorfold::families::glm5_next {

using backend::Tensor;

namespace {

/// Latents, then the index's keys with their gates (pooled in place).
void add_attention_caches(backend::CacheLayout& layout, const Config& config, const std::string& name) {
  layout.entries.emplace_back(backend::PagedEntry{name, config.latent});
  layout.entries.emplace_back(backend::PagedEntry{name + " index", 2LL * config.index_dim});
}

backend::CacheLayout list_caches(const Config& config) {
  backend::CacheLayout layout;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const std::string name = "layer " + std::to_string(layer);
    if (config.layers[layer].attends) {
      add_attention_caches(layout, config, name);
    } else {
      layout.entries.emplace_back(backend::StateEntry{name, config.delta});
    }
  }
  return layout;
}

}  // namespace

void Glm5NextModel::enter(const backend::Plan& plan, Tensor x) {
  embed(plan, left_);
  for (int32_t stream = 0; stream < config_.streams; ++stream)
    backend_.copy(plan, left_, x.columns(1LL * stream * config_.hidden, config_.hidden));
}

void Glm5NextModel::layer(const backend::Plan& plan, backend::Cache& cache, size_t index, Tensor x) {
  decoder_.layer(plan, cache, entries_[index], layers_[index], x);
}

Tensor Glm5NextModel::leave(const backend::Plan& plan, Tensor x) {
  backend_.mean_streams(plan, {.input = x, .output = left_});
  return left_;
}

void Glm5NextModel::tap(const backend::Plan& plan, Tensor x, Tensor output) {
  backend_.mean_streams(plan, {.input = x, .output = output});
}

backend::CacheLayout Glm5NextModel::cache_layout() const { return list_caches(config_); }

void MtpHead::enter(const backend::Plan& plan, Tensor x) {
  JoinedDraftHead::enter(plan, x);
  backend_.clear_position(plan, 0, x);
}

void MtpHead::layers(const backend::Plan& plan, backend::Cache& cache, Tensor x) {
  decoder_.plain_layer(plan, cache, 0, layer_, x);
}

backend::CacheLayout MtpHead::cache_layout() const {
  backend::CacheLayout layout;
  add_attention_caches(layout, decoder_.config(), "mtp layer 0");
  return layout;
}

MtpHead::MtpHead(WeightLoader& loader, const Layout& layout, const Decoder& decoder, const FrameWeights& frame,
                 backend::Backend& backend, int32_t max_rows)
    : JoinedDraftHead({.embedding_norm = loader.vector(*layout.mtp + "enorm.weight"),
                       .hidden_norm = loader.vector(*layout.mtp + "hnorm.weight"),
                       .final_norm = loader.vector(*layout.mtp + layout.mtp_norm() + ".weight"),
                       .join = loader.projection({*layout.mtp + "eh_proj"})},
                      frame, backend, max_rows, decoder.config().hidden),
      decoder_(decoder),
      layer_(load_layer(loader, backend, decoder.config(), layout, layout.mtp_layer, {true, true}, false)) {}

Glm5NextModel::Glm5NextModel(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                             int32_t max_rows)
    : FramedModel(describe(config), backend, max_rows, parse_config(config).streams),
      config_(parse_config(config)),
      decoder_(config_, backend, max_rows),
      left_(backend.allocate(max_rows, config_.hidden)) {
  int32_t entry = 0;
  for (const LayerKind kind : config_.layers) {
    entries_.push_back(entry);
    entry += kind.attends ? 2 : 1;
  }
  load(store, format::Quantization::parse(config));
}

void Glm5NextModel::load(const format::TensorStore& store, const format::Quantization& quantization) {
  const Layout layout = find_layout(config_, store.names());
  const std::vector<TensorSpec> inventory = list_tensors(config_, layout);
  WeightLoader loader(inventory, store, quantization, backend_);
  frame_.epsilon = config_.epsilon;
  frame_.embedding = loader.embedding(layout.root + "embed_tokens");
  for (size_t layer = 0; layer < config_.layers.size(); ++layer)
    layers_.push_back(load_layer(loader, backend_, config_, layout, layout.layer(layer), config_.layers[layer], true));
  frame_.final_norm = loader.vector(layout.root + "norm.weight");
  frame_.head = loader.projection({layout.head});
  info_.decode_bytes = static_cast<int64_t>(loader.projection_bytes());
  info_.draft_head = config_.mtp && layout.mtp.has_value();
  if (info_.draft_head) {
    mtp_ = std::make_unique<MtpHead>(loader, layout, decoder_, frame_, backend_, max_rows());
  }
}

ModelInfo describe(const nlohmann::json& json) {
  const Config config = parse_config(json);
  ModelInfo info;
  info.model_type = "glm5_next";
  info.title = "GLM-5.3-Flash";
  info.vocabulary_size = config.vocabulary;
  info.hidden_size = config.hidden;
  info.layers = static_cast<int32_t>(config.layers.size());
  info.native_context = config.native_context;
  // Beyond it rows attend to a choice of positions. Tiny configs, whose limit serves nobody, have no default.
  if (config.dense_context() >= 1024) {
    info.default_context = std::min(config.dense_context(), config.native_context);
    info.notes.push_back(fmt::format("without --context a conversation takes {} tokens: so many are all attended to",
                                     info.default_context));
  }
  info.end_tokens = format::end_tokens(json);
  info.draft_head = config.mtp;
  const auto bytes = count_bytes(list_tensors(config, Layout{}), format::Quantization::parse(json));
  info.decode_bytes = static_cast<int64_t>(bytes.read);
  return info;
}

Family family() {
  return {.model_type = "glm5_next",
          .title = "GLM-5.3-Flash, text alone",
          .aliases = {"glm5_next_text"},
          .describe = describe,
          .cache_layout = [](const nlohmann::json& config) { return list_caches(parse_config(config)); },
          .inventory =
              [](const nlohmann::json& json, std::span<const std::string> names) {
                const Config config = parse_config(json);
                return list_tensors(config, find_layout(config, names));
              },
          .skipped = skipped_tensors(),
          .load = load_as<Glm5NextModel>};
}

}  // namespace tensorfold::families::glm5_next
