#include "drafters/dflash_model.h"

#include <cmath>

#include <fmt/ranges.h>

#include "base/error.h"
#include "drafters/packed_matrix.h"
#include "format/floats.h"

namespace tensorfold::drafters {
namespace {

// Matrices below this many elements are not worth packing.
constexpr int64_t kSmallestPacked = int64_t{1} << 20;

// Looks tensors up by name and shape and gathers every problem before anything is loaded.
class Loader {
 public:
  Loader(backend::Backend& backend, const format::TensorStore& store, int32_t bits)
      : backend_(backend), store_(store), bits_(bits) {
    prefix_ = store.find("fc.weight") == nullptr && store.find("model.fc.weight") != nullptr ? "model." : "";
  }

  /// Stacked matrices over one input; nothing is loaded while problems are being gathered.
  std::unique_ptr<backend::Projection> projection(const std::vector<std::pair<std::string, int64_t>>& parts,
                                                  int64_t inputs) {
    std::vector<format::Linear> linears;
    std::vector<std::unique_ptr<PackedMatrix>> packed;
    for (const auto& [name, outputs] : parts) {
      const format::TensorInfo* info = find(name, {outputs, inputs});
      if (info == nullptr || checking_) continue;
      format::Linear linear{&store_, 1, outputs, inputs, std::nullopt, info, nullptr, nullptr};
      if (bits_ != 0 && outputs % 64 == 0 && inputs % 64 == 0 && outputs * inputs >= kSmallestPacked) {
        packed.push_back(std::make_unique<PackedMatrix>(linear, bits_));
        linear = packed.back()->linear();
      }
      linears.push_back(linear);
    }
    return checking_ ? nullptr : backend_.load_projection(linears);
  }

  std::unique_ptr<backend::Vector> vector(const std::string& name, const std::vector<int64_t>& shape) {
    const format::TensorInfo* info = find(name, shape);
    if (info == nullptr || checking_) return nullptr;
    std::vector<std::byte> bytes(info->bytes);
    store_.read(*info, 0, bytes);
    std::vector<float> values(info->bytes / static_cast<uint64_t>(format::size_of(info->type)));
    format::widen(info->type, bytes, values);
    return backend_.load_vector(values);
  }

  /// Ends the checking pass; throws when anything was missing.
  void finish_checking() {
    if (!problems_.empty())
      fail(ErrorKind::corrupt_file, "the drafter's weights do not fit its config: {}", fmt::join(problems_, "; "));
    checking_ = false;
  }

 private:
  const format::TensorInfo* find(const std::string& name, const std::vector<int64_t>& shape) {
    const format::TensorInfo* info = store_.find(prefix_ + name);
    if (info == nullptr) {
      problems_.push_back(fmt::format("{} is missing", name));
      return nullptr;
    }
    if (info->shape != shape || !format::is_float(info->type)) {
      problems_.push_back(
          fmt::format("{} is {} {}, not a float tensor {}", name, format::to_string(info->type), info->shape, shape));
      return nullptr;
    }
    return info;
  }

  backend::Backend& backend_;
  const format::TensorStore& store_;
  int32_t bits_;
  std::string prefix_;
  bool checking_ = true;
  std::vector<std::string> problems_;
};

}  // namespace

DflashModel::DflashModel(backend::Backend& backend, const DflashConfig& config, const format::TensorStore& store,
                         int32_t bits, int32_t max_rows)
    : backend_(backend), config_(config) {
  const int64_t hidden = config.hidden_size;
  const int64_t queries = int64_t{config.heads} * config.head_dim;
  const int64_t keys = int64_t{config.kv_heads} * config.head_dim;
  const int64_t groups = config.convolution_group == 0 ? 0 : hidden / config.convolution_group;
  Loader loader(backend, store, bits);
  layers_.resize(config.layers.size());

  const auto load_convolution = [&](Sublayer& sublayer, const std::string& name) {
    if (groups == 0) return;
    sublayer.kernels = loader.projection({{name + ".kernel_projection.weight", 4 * groups}}, hidden);
    sublayer.base = loader.vector(name + ".base_kernel", {2, 2, hidden});
  };
  const auto load_layer = [&](Layer& layer, const std::string& at) {
    const std::string self = at + "self_attn.";
    layer.attention.norm = loader.vector(at + "input_layernorm.weight", {hidden});
    load_convolution(layer.attention, at + "attention_conv");
    layer.attention.in = loader.projection(
        {{self + "q_proj.weight", queries}, {self + "k_proj.weight", keys}, {self + "v_proj.weight", keys}}, hidden);
    layer.attention.out = loader.projection({{self + "o_proj.weight", hidden}}, queries);
    layer.context = loader.projection({{self + "k_proj.weight", keys}, {self + "v_proj.weight", keys}}, hidden);
    layer.query_norm = loader.vector(self + "q_norm.weight", {config.head_dim});
    layer.key_norm = loader.vector(self + "k_norm.weight", {config.head_dim});
    layer.mlp.norm = loader.vector(at + "post_attention_layernorm.weight", {hidden});
    load_convolution(layer.mlp, at + "mlp_conv");
    layer.mlp.in = loader.projection({{at + "mlp.gate_proj.weight", config.intermediate_size},
                                      {at + "mlp.up_proj.weight", config.intermediate_size}},
                                     hidden);
    layer.mlp.out = loader.projection({{at + "mlp.down_proj.weight", hidden}}, config.intermediate_size);
  };
  const auto load_all = [&] {
    fuse_ = loader.projection({{"fc.weight", hidden}}, hidden * static_cast<int64_t>(config.tap_layers.size()));
    context_norm_ = loader.vector("hidden_norm.weight", {hidden});
    final_norm_ = loader.vector("norm.weight", {hidden});
    for (size_t i = 0; i < layers_.size(); ++i) load_layer(layers_[i], fmt::format("layers.{}.", i));
    if (config.selector_rank > 0) {
      selector_ = loader.projection({{"candidate_selector.hidden_projection.weight", config.selector_rank}}, hidden);
    }
  };
  load_all();
  loader.finish_checking();
  load_all();

  std::vector<float> frequencies(static_cast<size_t>(config.head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = static_cast<float>(std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / config.head_dim));
  }
  frequencies_ = backend.load_vector(frequencies);
  context_ = backend.allocate(max_rows, hidden);
  normed_ = backend.allocate(max_rows, hidden);
  convolved_ = backend.allocate(max_rows, hidden);
  if (groups != 0) dynamic_ = backend.allocate(max_rows, 4 * groups);
  heads_ = backend.allocate(max_rows, queries + 2 * keys);
  attended_ = backend.allocate(max_rows, queries);
  inner_ = backend.allocate(max_rows, config.intermediate_size);
}

backend::CacheLayout DflashModel::cache_layout() const {
  backend::CacheLayout layout;
  for (size_t i = 0; i < layers_.size(); ++i) {
    layout.entries.emplace_back(
        backend::PagedEntry{fmt::format("dflash.{}", i), 2LL * config_.kv_heads * config_.head_dim});
  }
  return layout;
}

backend::Attention DflashModel::attention_arguments(backend::Cache& cache, size_t layer) const {
  backend::Attention a;
  a.cache = &cache;
  a.entry = static_cast<int32_t>(layer);
  a.heads = config_.heads;
  a.kv_heads = config_.kv_heads;
  a.key_dim = config_.head_dim;
  a.value_dim = config_.head_dim;
  a.query_norm = layers_[layer].query_norm.get();
  a.key_norm = layers_[layer].key_norm.get();
  a.epsilon = config_.epsilon;
  a.rotary.frequencies = frequencies_.get();
  a.scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
  a.window = config_.layers[layer].window;
  a.bidirectional = !config_.layers[layer].causal;
  return a;
}

void DflashModel::absorb(const backend::Plan& plan, backend::Cache& cache, backend::Tensor taps) {
  const int64_t keys = int64_t{config_.kv_heads} * config_.head_dim;
  backend::Project fuse;
  fuse.weights = fuse_.get();
  fuse.input = taps;
  fuse.output = context_;
  backend_.project(plan, fuse);
  backend_.rms_norm(plan, {context_, context_norm_.get(), config_.epsilon, context_});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const backend::Tensor both = heads_.view.columns(0, 2 * keys);
    backend::Project project;
    project.weights = layers_[i].context.get();
    project.input = context_;
    project.output = both;
    backend_.project(plan, project);
    backend::Attention attention = attention_arguments(cache, i);
    attention.key = both.columns(0, keys);
    attention.value = both.columns(keys, keys);
    backend_.attention(plan, attention);
  }
}

backend::Tensor DflashModel::enter(const backend::Plan& plan, const Sublayer& sublayer, backend::Tensor hidden) {
  backend_.rms_norm(plan, {hidden, sublayer.norm.get(), config_.epsilon, normed_});
  if (!sublayer.kernels) return normed_;
  backend::Project kernels;
  kernels.weights = sublayer.kernels.get();
  kernels.input = normed_;
  kernels.output = dynamic_;
  backend_.project(plan, kernels);
  backend_.block_convolution(plan,
                             {normed_, dynamic_, sublayer.base.get(), 0, config_.convolution_group, false, convolved_});
  return convolved_;
}

void DflashModel::leave(const backend::Plan& plan, const Sublayer& sublayer, backend::Tensor inner,
                        backend::Tensor hidden) {
  backend::Project out;
  out.weights = sublayer.out.get();
  out.input = inner;
  if (!sublayer.kernels) {
    out.epilogue = backend::Project::Epilogue::add;
    out.output = hidden;
    backend_.project(plan, out);
    return;
  }
  out.output = normed_;
  backend_.project(plan, out);
  backend_.block_convolution(plan,
                             {normed_, dynamic_, sublayer.base.get(), 1, config_.convolution_group, true, hidden});
}

void DflashModel::block(const backend::Plan& plan, backend::Cache& cache, backend::Tensor hidden,
                        backend::Tensor normed, backend::Tensor projected) {
  const int64_t queries = int64_t{config_.heads} * config_.head_dim;
  const int64_t keys = int64_t{config_.kv_heads} * config_.head_dim;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    backend::Project project;
    project.weights = layer.attention.in.get();
    project.input = enter(plan, layer.attention, hidden);
    project.output = heads_;
    backend_.project(plan, project);
    backend::Attention attention = attention_arguments(cache, i);
    attention.query = heads_.view.columns(0, queries);
    attention.key = heads_.view.columns(queries, keys);
    attention.value = heads_.view.columns(queries + keys, keys);
    attention.output = attended_;
    backend_.attention(plan, attention);
    leave(plan, layer.attention, attended_, hidden);

    project.weights = layer.mlp.in.get();
    project.input = enter(plan, layer.mlp, hidden);
    project.epilogue = backend::Project::Epilogue::swiglu;
    project.output = inner_;
    backend_.project(plan, project);
    leave(plan, layer.mlp, inner_, hidden);
  }
  backend_.rms_norm(plan, {hidden, final_norm_.get(), config_.epsilon, normed});
  if (!selector_) return;
  backend::Project select;
  select.weights = selector_.get();
  select.input = normed;
  select.output = projected;
  select.rows = backend::RowSet::logits;
  backend_.project(plan, select);
}

}  // namespace tensorfold::drafters
