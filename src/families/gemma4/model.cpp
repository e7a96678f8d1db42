#include "families/gemma4/model.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "format/config.h"

namespace tensorfold::families::gemma4 {

using backend::RowSet;
using backend::Tensor;

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

// The forward in one page: scaled embedding; every layer; final norm, tied head, soft cap. The logits always come from
// the residual stream by the same fused norm and product, whatever else is asked for, so no output changes another's
// bits.
void Gemma4Model::forward(const backend::Plan& plan, backend::Cache& cache, const ForwardOutputs& outputs) {
  check(plan.rows() <= max_rows_, "a plan has no more rows than the model was loaded for");
  embed(plan, x_);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    decoder_.layer(plan, cache, static_cast<int32_t>(layer), layers_[layer], x_);
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
    if (config_.soft_cap > 0.0F)
      backend_.soft_cap(plan, {.values = outputs.logits, .cap = config_.soft_cap, .rows = RowSet::logits});
  }
}

void Gemma4Model::embed(const backend::Plan& plan, Tensor output) {
  backend_.embed(plan, *embedding_, config_.embedding_factor(), output);
}

void Gemma4Model::head(const backend::Plan& plan, Tensor normed, Tensor logits) {
  backend_.project(plan, {.weights = head_.get(), .input = normed, .output = logits, .rows = RowSet::logits});
}

backend::CacheLayout Gemma4Model::cache_layout() const { return list_caches(config_); }

Gemma4Model::Gemma4Model(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                         int32_t max_rows)
    : info_(describe(config)),
      config_(parse_config(config)),
      backend_(backend),
      max_rows_(max_rows),
      decoder_(config_, backend, max_rows),
      x_(backend.allocate(max_rows, config_.hidden)) {
  load(store, format::Quantization::parse(config));
}

void Gemma4Model::load(const format::TensorStore& store, const format::Quantization& quantization) {
  const Layout layout = find_layout(store.names());
  const std::vector<TensorSpec> inventory = list_tensors(config_, layout);
  WeightLoader loader(inventory, store, quantization, backend_);
  embedding_ = loader.embedding(layout.root + "embed_tokens");
  for (size_t layer = 0; layer < config_.layers.size(); ++layer)
    layers_.push_back(load_layer(loader, backend_, config_, layout, layer));
  final_norm_ = loader.vector(layout.root + "norm.weight");
  head_ = loader.projection({layout.root + "embed_tokens"});
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
          .load = [](const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                     int32_t max_rows) -> std::unique_ptr<Model> {
            return std::make_unique<Gemma4Model>(config, store, backend, max_rows);
          }};
}

}  // namespace tensorfold::families::gemma4
