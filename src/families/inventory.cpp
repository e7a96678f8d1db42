#include "families/inventory.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "format/floats.h"

namespace tensorfold::families {
namespace {

constexpr size_t kMostShown = 40;

/// The shape without dimensions of 1: a convolution's [C, 1, K] and [C, K, 1] hold the same values in the same order.
std::vector<int64_t> squeezed(std::span<const int64_t> shape) {
  std::vector<int64_t> sizes;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(sizes), [](int64_t size) { return size != 1; });
  return sizes;
}

/// One tensor of its own name, not a module.
bool is_bare(const TensorSpec& spec) { return spec.role == TensorRole::vector || spec.role == TensorRole::integers; }

/// The tensors that a spec accounts for.
std::vector<std::string> names_of(const TensorSpec& spec) {
  if (is_bare(spec)) return {spec.module};
  // Hugging Face stores stacked experts as a parameter without a module: its name has no ".weight".
  return {spec.module + ".weight", spec.module + ".scales", spec.module + ".biases", spec.module};
}

void check_vector(const TensorSpec& spec, const format::TensorInfo& tensor, format::ProblemList& problems) {
  if (squeezed(tensor.shape) != squeezed(spec.shape)) {
    problems.add("{} has the shape {} instead of {}", spec.module, format::to_string(tensor.shape),
                 format::to_string(spec.shape));
  }
  if (spec.role == TensorRole::integers) {
    if (tensor.type != format::DataType::i64)
      problems.add("{} has the dtype {} instead of I64", spec.module, format::to_string(tensor.type));
  } else if (!format::is_float(tensor.type)) {
    problems.add("{} has the dtype {} instead of F32, F16 or BF16", spec.module, format::to_string(tensor.type));
  }
}

/// Buffers that old exporters save beside the weights and every loader derives itself.
bool is_derived(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

/// Unknown names become one problem, skipped ones a note a kind.
std::vector<std::string> check_names(const std::set<std::string>& known, std::span<const SkippedTensors> skipped,
                                     const format::TensorStore& store, format::ProblemList& problems) {
  std::vector<std::string> unknown;
  std::vector<std::string> notes;
  for (const std::string& name : store.names()) {
    if (known.contains(name) || is_derived(name)) continue;
    const auto rule = std::find_if(skipped.begin(), skipped.end(),
                                   [&](const SkippedTensors& each) { return name.starts_with(each.prefix); });
    if (rule == skipped.end()) {
      unknown.push_back(format::printable(name));
    } else if (!rule->note.empty() && std::find(notes.begin(), notes.end(), rule->note) == notes.end()) {
      notes.push_back(rule->note);
    }
  }
  if (unknown.empty()) return notes;
  const size_t shown = std::min(unknown.size(), kMostShown);
  const std::string rest = shown < unknown.size() ? fmt::format(" and {} more", unknown.size() - shown) : "";
  problems.add("unknown tensors {}{}", fmt::join(std::span(unknown).first(shown), ", "), rest);
  return notes;
}

}  // namespace

std::optional<format::AffineFormat> packing_of(const TensorSpec& spec, const format::Quantization& quantization) {
  const format::ModuleQuantization rule = quantization.of(spec.module);
  if (spec.never_packed && rule.rule == format::ModuleRule::unsaid) return std::nullopt;
  const bool packed = rule.rule != format::ModuleRule::plain && rule.format &&
                      (rule.rule == format::ModuleRule::packed || spec.shape.back() % rule.format->group_size == 0);
  return packed ? rule.format : std::nullopt;
}

std::vector<std::string> check_inventory(std::span<const TensorSpec> inventory, std::span<const SkippedTensors> skipped,
                                         const format::TensorStore& store, const format::Quantization& quantization) {
  format::ProblemList problems;
  std::set<std::string> known;
  for (const TensorSpec& spec : inventory) {
    const std::vector<std::string> names = names_of(spec);
    known.insert(names.begin(), names.end());
    if (spec.optional && store.find(names.front()) == nullptr) continue;
    if (!is_bare(spec)) {
      format::resolve_linear(store, quantization, spec.module, spec.shape, problems);
    } else if (const format::TensorInfo* tensor = store.find(spec.module)) {
      check_vector(spec, *tensor, problems);
    } else {
      problems.add("{} is missing", spec.module);
    }
  }
  std::vector<std::string> notes = check_names(known, skipped, store, problems);
  problems.throw_if_any(ErrorKind::corrupt_file, "the checkpoint does not fit its config.json");
  return notes;
}

std::unique_ptr<format::SyntheticStore> make_synthetic_store(std::span<const TensorSpec> inventory,
                                                             const format::Quantization& quantization, uint64_t seed) {
  auto store = std::make_unique<format::SyntheticStore>(seed);
  for (const TensorSpec& spec : inventory) {
    if (spec.role == TensorRole::integers) continue;
    if (spec.role == TensorRole::vector) {
      store->add_vector(spec.module, spec.shape, spec.center, spec.spread);
    } else {
      store->add_linear(spec.module, spec.shape, packing_of(spec, quantization));
    }
  }
  return store;
}

WeightBytes count_bytes(std::span<const TensorSpec> inventory, const format::Quantization& quantization) {
  WeightBytes bytes;
  for (const TensorSpec& spec : inventory) {
    uint64_t count = 1;
    for (const int64_t size : spec.shape) count *= static_cast<uint64_t>(size);
    uint64_t taken = count * (spec.role == TensorRole::integers ? 8 : 2);  // bf16
    if (!is_bare(spec)) {
      if (const auto packing = packing_of(spec, quantization)) {
        taken =
            count * static_cast<uint64_t>(packing->bits) / 8 + count / static_cast<uint64_t>(packing->group_size) * 4;
      }
    }
    bytes.total += taken;
    if (!spec.stays_on_disk) bytes.resident += taken;
    if (spec.role != TensorRole::embedding) {
      bytes.read +=
          spec.read_share == 1.0 ? taken : static_cast<uint64_t>(static_cast<double>(taken) * spec.read_share);
    }
  }
  return bytes;
}

WeightLoader::WeightLoader(std::span<const TensorSpec> inventory, const format::TensorStore& store,
                           const format::Quantization& quantization, backend::Backend& backend)
    : store_(store), quantization_(quantization), backend_(backend) {
  uint64_t bytes = 0;
  for (const TensorSpec& spec : inventory) {
    if (!is_bare(spec)) modules_.emplace(spec.module, &spec);
    if (spec.stays_on_disk) continue;
    first_.emplace(spec.module, order_.size());
    for (const std::string& name : names_of(spec)) {
      const format::TensorInfo* tensor = store.find(name);
      if (tensor == nullptr) continue;
      order_.push_back({tensor, bytes});
      bytes += tensor->bytes;
    }
  }
}

void WeightLoader::reach(const std::string& module) {
  constexpr uint64_t ahead = uint64_t{512} << 20;
  const auto place = first_.find(module);
  if (place == first_.end() || place->second >= order_.size()) return;
  const uint64_t until = order_[place->second].before + ahead;
  for (; expected_ < order_.size() && order_[expected_].before < until; ++expected_)
    store_.expect(*order_[expected_].tensor);
}

bool WeightLoader::has(std::string_view module) const {
  return store_.find(module) != nullptr || store_.find(std::string(module) + ".weight") != nullptr;
}

const TensorSpec& WeightLoader::spec_of(const std::string& module) const {
  const auto spec = modules_.find(module);
  check(spec != modules_.end(), "a family loads modules of its inventory");
  return *spec->second;
}

format::Linear WeightLoader::linear(const std::string& module) const {
  format::ProblemList problems;
  format::Linear linear = format::resolve_linear(store_, quantization_, module, spec_of(module).shape, problems);
  problems.throw_if_any(ErrorKind::corrupt_file, "the checkpoint does not fit its config.json");
  return linear;
}

std::unique_ptr<backend::Projection> WeightLoader::projection(std::span<const std::string> modules) {
  std::vector<format::Linear> stacked;
  for (const std::string& module : modules) {
    reach(module);
    stacked.push_back(linear(module));
  }
  auto projection = backend_.load_projection(stacked);
  const auto bytes = static_cast<double>(projection->bytes());
  projection_bytes_ += static_cast<uint64_t>(bytes * spec_of(modules.front()).read_share);
  return projection;
}

std::unique_ptr<backend::Embedding> WeightLoader::embedding(const std::string& module) {
  reach(module);
  return backend_.load_embedding(linear(module));
}

std::vector<float> WeightLoader::values(const std::string& name) {
  reach(name);
  const format::TensorInfo* tensor = store_.find(name);
  check(tensor != nullptr, "a family loads vectors of its inventory");
  std::vector<std::byte> bytes(tensor->bytes);
  store_.read(*tensor, 0, bytes);
  std::vector<float> values(tensor->bytes / static_cast<uint64_t>(format::size_of(tensor->type)));
  format::widen(tensor->type, bytes, values);
  if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
    fail(ErrorKind::corrupt_file, "{} holds NaN or infinity: the file is damaged", name);
  return values;
}

std::unique_ptr<backend::NgramTable> WeightLoader::ngram_table(const backend::NgramHashing& hashing,
                                                               std::span<const std::string> modules) {
  std::vector<format::Linear> shards;
  for (const std::string& module : modules) shards.push_back(linear(module));
  return backend_.load_ngram_table(hashing, shards);
}

std::optional<std::vector<int64_t>> WeightLoader::integers(const std::string& name) const {
  const format::TensorInfo* tensor = store_.find(name);
  if (tensor == nullptr) return std::nullopt;
  std::vector<int64_t> values(tensor->bytes / sizeof(int64_t));
  store_.read(*tensor, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

std::unique_ptr<backend::Vector> WeightLoader::vector(const std::string& name, float shift) {
  std::vector<float> loaded = values(name);
  for (float& value : loaded) value += shift;
  return backend_.load_vector(loaded);
}

}  // namespace tensorfold::families
