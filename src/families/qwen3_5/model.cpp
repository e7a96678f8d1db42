#include "families/qwen3_5/model.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "format/config.h"

namespace tensorfold::families::qwen3_5 {

using backend::RowSet;
using backend::Tensor;

namespace {

/// One entry a layer, in order.
backend::CacheLayout list_caches(const Config& config) {
  backend::CacheLayout layout;
  for (size_t layer = 0; layer < config.attends.size(); ++layer) {
    const std::string name = "layer " + std::to_string(layer);
    if (config.attends[layer]) {
      layout.entries.emplace_back(backend::PagedEntry{name, 2LL * config.kv_width()});
    } else {
      layout.entries.emplace_back(backend::StateEntry{name, config.delta});
    }
  }
  return layout;
}

}  // namespace

// The forward in one page: embed; every layer; final norm and head. The logits always come from the residual stream by
// the same fused norm and product, whatever else is asked for, so no output changes another's bits.
void Qwen35Model::forward(const backend::Plan& plan, backend::Cache& cache, const ForwardOutputs& outputs) {
  check(plan.rows() <= max_rows_, "a plan has no more rows than the model was loaded for");
  backend_.embed(plan, *embedding_, 1.0F, x_);
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
  }
}

void Qwen35Model::embed(const backend::Plan& plan, Tensor output) { backend_.embed(plan, *embedding_, 1.0F, output); }

void Qwen35Model::head(const backend::Plan& plan, Tensor normed, Tensor logits) {
  backend_.project(plan, {.weights = head_.get(), .input = normed, .output = logits, .rows = RowSet::logits});
}

backend::CacheLayout Qwen35Model::cache_layout() const { return list_caches(config_); }

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
  shared_.decoder.layer(plan, cache, 0, layer_, x_);
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
  return {{backend::PagedEntry{"mtp layer 0", 2LL * shared_.config.kv_width()}}};
}

namespace {

/// Norms of a checkpoint in Hugging Face's layout hold w of a multiplier 1 + w; converters to MLX add the 1. The
/// convolution's axes, which they swap in the same step, tell: [C, 1, K] or [C, K, 1] (spec A.3.1).
float norm_shift(const Config& config, const Layout& layout, const format::TensorStore& store) {
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const auto* convolution = store.find(layout.layer(layer) + "linear_attn.conv1d.weight");
    if (convolution != nullptr) return convolution->shape.back() == 1 ? 0.0F : 1.0F;
  }
  return layout.root == Layout{}.root ? 0.0F : 1.0F;
}

}  // namespace

MtpHead::MtpHead(WeightLoader& loader, const std::string& prefix, const SharedWeights& shared, int32_t max_rows)
    : shared_(shared),
      // Zero-centred in every layout.
      embedding_norm_(loader.vector(prefix + "pre_fc_norm_embedding.weight", 1.0F)),
      hidden_norm_(loader.vector(prefix + "pre_fc_norm_hidden.weight", 1.0F)),
      final_norm_(loader.vector(prefix + "norm.weight", 1.0F)),
      join_(loader.projection({prefix + "fc"})),
      layer_(load_layer(loader, prefix + "layers.0.", true, 1.0F)),
      joined_(shared.backend.allocate(max_rows, 2LL * shared.config.hidden)),
      x_(shared.backend.allocate(max_rows, shared.config.hidden)) {}

Qwen35Model::Qwen35Model(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                         int32_t max_rows)
    : info_(describe(config)),
      config_(parse_config(config)),
      backend_(backend),
      max_rows_(max_rows),
      decoder_(config_, backend, max_rows),
      x_(backend.allocate(max_rows, config_.hidden)) {
  load(store, format::Quantization::parse(config));
}

void Qwen35Model::load(const format::TensorStore& store, const format::Quantization& quantization) {
  const Layout layout = find_layout(store.names());
  const std::vector<TensorSpec> inventory = list_tensors(config_, layout);
  WeightLoader loader(inventory, store, quantization, backend_);
  const float shift = norm_shift(config_, layout, store);
  embedding_ = loader.embedding(layout.root + "embed_tokens");
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    layers_.push_back(load_layer(loader, layout.layer(layer), config_.attends[static_cast<size_t>(layer)], shift));
  }
  final_norm_ = loader.vector(layout.root + "norm.weight", shift);
  head_ = loader.projection({config_.tied ? layout.root + "embed_tokens" : layout.head});
  info_.decode_bytes = static_cast<int64_t>(loader.projection_bytes());
  info_.draft_head = config_.mtp_layers == 1 && !layout.mtp.empty();
  if (info_.draft_head) {
    const SharedWeights shared{config_, backend_, decoder_, *embedding_, *head_};
    mtp_ = std::make_unique<MtpHead>(loader, layout.mtp, shared, max_rows_);
  }
}

ModelInfo describe(const nlohmann::json& json) {
  const Config config = parse_config(json);
  ModelInfo info;
  info.model_type = "qwen3_5";
  info.title = "Qwen3.5 architecture, dense";
  info.vocabulary_size = config.vocabulary;
  info.hidden_size = config.hidden;
  info.layers = config.layers;
  info.native_context = config.native_context;
  info.end_tokens = format::end_tokens(json);
  info.draft_head = config.mtp_layers == 1;
  Layout layout;
  layout.mtp.clear();
  const auto bytes = count_bytes(list_tensors(config, layout), format::Quantization::parse(json));
  info.decode_bytes = static_cast<int64_t>(bytes.read);
  return info;
}

Family family() {
  return {.model_type = "qwen3_5",
          .title = "Qwen3.5 architecture, dense (Qwen3.8-27B and relatives)",
          .aliases = {"qwen3_5_text"},
          .describe = describe,
          .cache_layout = [](const nlohmann::json& config) { return list_caches(parse_config(config)); },
          .inventory =
              [](const nlohmann::json& config, std::span<const std::string> names) {
                return list_tensors(parse_config(config), find_layout(names));
              },
          .skipped = skipped_tensors(),
          .load = [](const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                     int32_t max_rows) -> std::unique_ptr<Model> {
            return std::make_unique<Qwen35Model>(config, store, backend, max_rows);
          }};
}

}  // namespace tensorfold::families::qwen3_5
