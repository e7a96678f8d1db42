#include "families/qwen3_5/model.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "format/config.h"

namespace tensorfold::families::qwen3_5 {

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

void Qwen35Model::layer(const backend::Plan& plan, backend::Cache& cache, size_t index, Tensor x) {
  decoder_.layer(plan, cache, static_cast<int32_t>(index), layers_[index], x);
}

backend::CacheLayout Qwen35Model::cache_layout() const { return list_caches(config_); }

void MtpHead::layers(const backend::Plan& plan, backend::Cache& cache, Tensor x) {
  decoder_.layer(plan, cache, 0, layer_, x);
}

backend::CacheLayout MtpHead::cache_layout() const {
  return {{backend::PagedEntry{"mtp layer 0", 2LL * decoder_.config().kv_width()}}};
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

/// The decoder's own norms alone: those of the delta heads and of the MTP head stay as they are.
float conversion_shift(const nlohmann::json& config, const format::TensorStore& store, const std::string& name) {
  const Layout mlx;
  if (!name.starts_with(mlx.root)) return 0.0F;
  const bool centred = name.ends_with("layernorm.weight") || name.ends_with("q_norm.weight") ||
                       name.ends_with("k_norm.weight") || name == mlx.root + "norm.weight";
  return centred ? norm_shift(parse_config(config), find_layout(store.names()), store) : 0.0F;
}

}  // namespace

// The head's norms are zero-centred in every layout.
MtpHead::MtpHead(WeightLoader& loader, const std::string& prefix, const Decoder& decoder, const FrameWeights& frame,
                 backend::Backend& backend, int32_t max_rows)
    : JoinedDraftHead({.embedding_norm = loader.vector(prefix + "pre_fc_norm_embedding.weight", 1.0F),
                       .hidden_norm = loader.vector(prefix + "pre_fc_norm_hidden.weight", 1.0F),
                       .final_norm = loader.vector(prefix + "norm.weight", 1.0F),
                       .join = loader.projection({prefix + "fc"})},
                      frame, backend, max_rows, decoder.config().hidden),
      decoder_(decoder),
      layer_(load_layer(loader, prefix + "layers.0.", true, 1.0F)) {}

Qwen35Model::Qwen35Model(const nlohmann::json& config, const format::TensorStore& store, backend::Backend& backend,
                         int32_t max_rows)
    : FramedModel(describe(config), backend, max_rows),
      config_(parse_config(config)),
      decoder_(config_, backend, max_rows) {
  load(store, format::Quantization::parse(config));
}

void Qwen35Model::load(const format::TensorStore& store, const format::Quantization& quantization) {
  const Layout layout = find_layout(store.names());
  const std::vector<TensorSpec> inventory = list_tensors(config_, layout);
  WeightLoader loader(inventory, store, quantization, backend_);
  const float shift = norm_shift(config_, layout, store);
  frame_.epsilon = config_.epsilon;
  frame_.embedding = loader.embedding(layout.root + "embed_tokens");
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    layers_.push_back(load_layer(loader, layout.layer(layer), config_.attends[static_cast<size_t>(layer)], shift));
  }
  frame_.final_norm = loader.vector(layout.root + "norm.weight", shift);
  frame_.head = loader.projection({config_.tied ? layout.root + "embed_tokens" : layout.head});
  info_.decode_bytes = static_cast<int64_t>(loader.projection_bytes());
  info_.draft_head = config_.mtp_layers == 1 && !layout.mtp.empty();
  if (info_.draft_head) {
    mtp_ = std::make_unique<MtpHead>(loader, layout.mtp, decoder_, frame_, backend_, max_rows());
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
  if (config.mtp_layers > 1) {
    info.notes.push_back(
        fmt::format("the draft head of {} layers is not used: heads of one layer are", config.mtp_layers));
  }
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
          .load = load_as<Qwen35Model>,
          .conversion_shift = conversion_shift};
}

}  // namespace tensorfold::families::qwen3_5
