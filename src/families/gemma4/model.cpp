#include "families/gemma4/model.h"

#include <nlohmann/json.hpp>

#include "format/config.h"

namespace tensorfold::families::gemma4 {

namespace {

/// One entry a layer: keys and values, which differ even where they come from one product.
backend::CacheLayout list_caches(const Config& config) {
  backend::CacheLayout layout;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const int64_t width = 2 * Config::kv_width(config.layers[layer]);
    layout.entries.emplace_back(backend::PagedEntry{"layer " + std::to_string(layer), width});
  }
  return layout;
}

}  // namespace

void Gemma4Model::layer(const backend::Plan& plan, backend::Cache& cache, size_t index, backend::Tensor x) {
  decoder_.layer(plan, cache, static_cast<int32_t>(index), layers_[index], x);
}

backend::CacheLayout Gemma4Model::cache_layout() const { return list_caches(config_); }

Gemma4Model::Gemma4Model(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                         int32_t max_rows)
    : FramedModel(describe(config), backend, max_rows),
      config_(parse_config(config)),
      decoder_(config_, backend, max_rows) {
  load(store, format::Quantization::parse(config));
}

void Gemma4Model::load(const format::TensorStore& store, const format::Quantization& quantization) {
  const Layout layout = find_layout(store.names());
  const std::vector<TensorSpec> inventory = list_tensors(config_, layout);
  WeightLoader loader(inventory, store, quantization, backend_);
  frame_.embedding_factor = config_.embedding_factor();
  frame_.epsilon = config_.epsilon;
  frame_.soft_cap = config_.soft_cap;
  frame_.embedding = loader.embedding(layout.root + "embed_tokens");
  for (size_t layer = 0; layer < config_.layers.size(); ++layer)
    layers_.push_back(load_layer(loader, backend_, config_, layout, layer));
  frame_.final_norm = loader.vector(layout.root + "norm.weight");
  frame_.head = loader.projection({layout.root + "embed_tokens"});
  info_.decode_bytes = static_cast<int64_t>(loader.projection_bytes());
}

ModelInfo describe(const nlohmann::json& json) {
  const Config config = parse_config(json);
  ModelInfo info;
  info.model_type = "gemma4";
  info.title = "Gemma 4 with experts";
  info.vocabulary_size = config.vocabulary;
  info.hidden_size = config.hidden;
  info.layers = static_cast<int32_t>(config.layers.size());
  info.native_context = config.native_context;
  info.end_tokens = format::end_tokens(json);
  const auto bytes = count_bytes(list_tensors(config, {}), format::Quantization::parse(json));
  info.decode_bytes = static_cast<int64_t>(bytes.read);
  return info;
}

Family family() {
  return {.model_type = "gemma4",
          .title = "Gemma 4 with experts (26B-A4B), text alone",
          .aliases = {"gemma4_text"},
          .describe = describe,
          .cache_layout = [](const nlohmann::json& config) { return list_caches(parse_config(config)); },
          .inventory =
              [](const nlohmann::json& config, std::span<const std::string> names) {
                return list_tensors(parse_config(config), find_layout(names));
              },
          .skipped = skipped_tensors(),
          .load = load_as<Gemma4Model>};
}

}  // namespace tensorfold::families::gemma4
