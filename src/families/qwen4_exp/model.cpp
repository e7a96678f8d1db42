#include "families/qwen4_exp/model.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "format/config.h"
#include "format/floats.h"

namespace tensorfold::families::qwen4_exp {

using backend::Project;
using backend::RowSet;
using backend::Tensor;

namespace {

/// The entries of all layers, in order; `entries` receives who has which.
backend::CacheLayout list_caches(const Config& config, std::vector<LayerEntries>* entries = nullptr) {
  backend::CacheLayout layout;
  for (size_t layer = 0; layer < config.attends.size(); ++layer) {
    const bool ngram = config.ngram && static_cast<size_t>(config.ngram->layer) == layer;
    const LayerEntries own =
        add_entries(config, "layer " + std::to_string(layer), config.attends[layer], ngram, layout);
    if (entries != nullptr) entries->push_back(own);
  }
  return layout;
}

/// output = the row in every stream.
void repeat(backend::Backend& backend, const backend::Plan& plan, Tensor row, Tensor output) {
  for (int64_t first = 0; first < output.width; first += row.width)
    backend.copy(plan, row, output.columns(first, row.width));
}

/// Norms of the original hold w of a multiplier 1 + w, conversions may hold the multiplier itself: the connections'
/// norms tell (spec 2.3). 1: w is held.
float norm_shift(WeightLoader& loader, const Config& config, const Layout& layout) {
  std::vector<double> means;
  for (size_t layer = 0; layer < config.attends.size(); ++layer) {
    const std::vector<float> values = loader.values(layout.layer(layer) + "attn_hyper_connection.hc_norm.weight");
    means.push_back(std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()));
  }
  std::sort(means.begin(), means.end());
  const double median = means[means.size() / 2];
  const auto high = static_cast<double>(std::count_if(means.begin(), means.end(), [](double m) { return m > 0.5; }));
  const double share = high / static_cast<double>(means.size());
  if (share >= 0.9 && median >= 0.75 && median <= 1.5) return 0.0F;
  if (share <= 0.1 && median >= -0.5 && median <= 0.25) return 1.0F;
  fail(ErrorKind::corrupt_file,
       "the hc_norm weights lie around {:.2f}: neither norm multipliers nor their distances from 1", median);
}

/// Of an original that holds w: every norm but the delta heads' own.
float conversion_shift(const nlohmann::json& /*config*/, const format::TensorStore& store, const std::string& name) {
  if (name.find("norm") == std::string::npos || name.ends_with("linear_attn.norm.weight")) return 0.0F;
  const std::string first = find_layout(store.names()).layer(0) + "attn_hyper_connection.hc_norm.weight";
  const format::TensorInfo* tensor = store.find(first);
  if (tensor == nullptr || !format::is_float(tensor->type)) return 0.0F;
  std::vector<std::byte> bytes(tensor->bytes);
  store.read(*tensor, 0, bytes);
  std::vector<float> values(bytes.size() / static_cast<size_t>(format::size_of(tensor->type)));
  format::widen(tensor->type, bytes, values);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return sum < 0.5 * static_cast<double>(values.size()) ? 1.0F : 0.0F;
}

}  // namespace

void FlashNextModel::enter(const backend::Plan& plan, Tensor x) {
  embed(plan, embedded_);
  repeat(backend_, plan, embedded_, x);
}

void FlashNextModel::layer(const backend::Plan& plan, backend::Cache& cache, size_t index, Tensor x) {
  decoder_.layer(plan, cache, entries_[index], layers_[index], x);
}

Tensor FlashNextModel::leave(const backend::Plan& plan, Tensor x) { return decoder_.read_out(plan, mixer_, x); }

void FlashNextModel::tap(const backend::Plan& plan, Tensor x, Tensor output) {
  backend_.mean_streams(plan, {.input = x, .output = output});
}

void FlashNextModel::write_hidden(const backend::Plan& plan, Tensor x, Tensor /*left*/, Tensor output) {
  backend_.copy(plan, x, output);
}

backend::CacheLayout FlashNextModel::cache_layout() const { return list_caches(config_); }

void MtpHead::forward(const backend::Plan& plan, backend::Cache& cache, Tensor hidden, Tensor hidden_output,
                      Tensor logits) {
  const float epsilon = frame_.epsilon;
  const int64_t width = single_.view.width;
  backend_.embed(plan, *frame_.embedding, frame_.embedding_factor, embedded_);
  backend_.rms_norm(plan,
                    {.input = embedded_, .weight = embedding_norm_.get(), .epsilon = epsilon, .output = embedded_});
  backend_.project(plan, {.weights = embedding_product_.get(), .input = embedded_, .output = single_});
  // One norm over all streams together.
  backend_.rms_norm(plan, {.input = hidden, .weight = hidden_norm_.get(), .epsilon = epsilon, .output = normed_});
  repeat(backend_, plan, single_, x_);
  for (int64_t first = 0; first < x_.view.width; first += width) {
    backend_.project(plan, {.weights = hidden_product_.get(),
                            .input = normed_.view.columns(first, width),
                            .epilogue = Project::Epilogue::add,
                            .output = x_.view.columns(first, width)});
  }
  decoder_.layer(plan, cache, {.mixer = 0, .index = 1}, layer_, x_);
  if (hidden_output) backend_.copy(plan, x_, hidden_output);
  if (!logits || plan.logit_rows.empty()) return;
  backend_.project(plan, {.weights = frame_.head.get(),
                          .input = decoder_.read_out(plan, mixer_, x_),
                          .output = logits,
                          .rows = RowSet::logits});
}

backend::CacheLayout MtpHead::cache_layout() const {
  backend::CacheLayout layout;
  add_entries(decoder_.config(), "mtp layer 0", true, false, layout);
  return layout;
}

MtpHead::MtpHead(WeightLoader& loader, const Layout& layout, float shift, const Decoder& decoder,
                 const FrameWeights& frame, backend::Backend& backend, int32_t max_rows)
    : backend_(backend),
      decoder_(decoder),
      frame_(frame),
      embedding_norm_(loader.vector(*layout.mtp + "pre_fc_norm_embedding.weight", shift)),
      hidden_norm_(loader.vector(*layout.mtp + "pre_fc_norm_hidden.weight", shift)),
      embedding_product_(loader.projection({*layout.mtp + "fc_embedding"})),
      hidden_product_(loader.projection({*layout.mtp + "fc_hidden"})),
      layer_(load_layer(loader, decoder.config(), *layout.mtp + "layers.0.", true, layout.mtp_experts, shift)),
      mixer_(load_hyper_connection(loader, *layout.mtp + "hyper_connection_mixer", shift, false)),
      embedded_(backend.allocate(max_rows, decoder.config().hidden)),
      single_(backend.allocate(max_rows, decoder.config().hidden)),
      normed_(backend.allocate(max_rows, decoder.config().stream_width())),
      x_(backend.allocate(max_rows, decoder.config().stream_width())) {}

FlashNextModel::FlashNextModel(const nlohmann::json& config, const format::TensorStore& store,
                               backend::Backend& backend, int32_t max_rows)
    : FramedModel(describe(config), backend, max_rows, parse_config(config).streams),
      config_(parse_config(config)),
      decoder_(config_, backend, max_rows),
      embedded_(backend.allocate(max_rows, config_.hidden)) {
  list_caches(config_, &entries_);
  load(store, format::Quantization::parse(config));
}

void FlashNextModel::load(const format::TensorStore& store, const format::Quantization& quantization) {
  const Layout layout = find_layout(store.names());
  const std::vector<TensorSpec> inventory = list_tensors(config_, layout);
  WeightLoader loader(inventory, store, quantization, backend_);
  const float shift = norm_shift(loader, config_, layout);
  frame_.epsilon = config_.epsilon;
  frame_.embedding = loader.embedding(layout.root + "embed_tokens");
  for (size_t layer = 0; layer < config_.attends.size(); ++layer) {
    layers_.push_back(load_layer(loader, config_, layout.layer(layer), config_.attends[layer], layout.experts, shift));
    if (entries_[layer].ngram >= 0) layers_.back().ngram = load_ngram(loader, config_, layout.layer(layer), shift);
  }
  mixer_ = load_hyper_connection(loader, layout.root + "hyper_connection_mixer", shift, false);
  frame_.head = loader.projection({config_.tied ? layout.root + "embed_tokens" : layout.head});
  info_.decode_bytes = static_cast<int64_t>(loader.projection_bytes());
  info_.draft_head = config_.mtp && layout.mtp.has_value();
  if (info_.draft_head) mtp_ = std::make_unique<MtpHead>(loader, layout, shift, decoder_, frame_, backend_, max_rows());
}

ModelInfo describe(const nlohmann::json& json) {
  const Config config = parse_config(json);
  ModelInfo info;
  info.model_type = "qwen4_exp";
  info.title = "Qwen3.8 Flash Next";
  info.vocabulary_size = config.vocabulary;
  info.hidden_size = config.hidden;
  info.hidden_streams = config.streams;
  info.layers = static_cast<int32_t>(config.attends.size());
  info.native_context = config.native_context;
  info.end_tokens = format::end_tokens(json);
  info.draft_head = config.mtp;
  if (config.mtp_layers > 1) {
    info.notes.push_back(
        fmt::format("the draft head of {} layers is not used: heads of one layer are", config.mtp_layers));
  }
  Layout layout;
  layout.mtp.reset();
  const format::Quantization quantization = format::Quantization::parse(json);
  const std::vector<TensorSpec> inventory = list_tensors(config, layout);
  const WeightBytes bytes = count_bytes(inventory, quantization);
  info.decode_bytes = static_cast<int64_t>(bytes.read);
  if (config.ngram) {
    info.notes.push_back(fmt::format("the n-gram table ({:.3f} GB) stays in the checkpoint's files",
                                     static_cast<double>(bytes.total - bytes.resident) / 1e9));
  }
  return info;
}

Family family() {
  return {.model_type = "qwen4_exp",
          .title = "Qwen3.8 Flash Next, text alone",
          .aliases = {"qwen4_exp_text", "qwen3_8_flash_next"},
          .describe = describe,
          .cache_layout = [](const nlohmann::json& config) { return list_caches(parse_config(config)); },
          .inventory =
              [](const nlohmann::json& config, std::span<const std::string> names) {
                return list_tensors(parse_config(config), find_layout(names));
              },
          .skipped = skipped_tensors(),
          .load = load_as<FlashNextModel>,
          .conversion_shift = conversion_shift};
}

}  // namespace tensorfold::families::qwen4_exp
