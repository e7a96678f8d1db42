#include "families/checkpoint.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tensorfold::families {

const Family& require_family(const nlohmann::json& config) {
  if (const Family* family = find_family(config)) return *family;
  std::vector<std::string> served;
  for (const Family& family : all_families()) served.push_back(family.model_type);
  const auto type = config.find("model_type");
  fail(ErrorKind::unsupported, "no family here serves the model_type {} (served: {})",
       type == config.end() ? "(absent)" : format::printable_json(*type), fmt::join(served, ", "));
}

Checkpoint open_checkpoint(const std::filesystem::path& directory) {
  Checkpoint checkpoint;
  checkpoint.config = format::load_config(directory);
  const nlohmann::json& config = checkpoint.config.json;
  checkpoint.family = &require_family(config);
  const ModelInfo info = checkpoint.family->describe(config);
  const format::Quantization quantization = format::Quantization::parse(config);
  checkpoint.store = format::SafetensorsStore::open_directory(directory);
  const std::vector<TensorSpec> inventory = checkpoint.family->inventory(config, checkpoint.store->names());
  checkpoint.notes = check_inventory(inventory, checkpoint.family->skipped, *checkpoint.store, quantization);
  checkpoint.notes.insert(checkpoint.notes.begin(), info.notes.begin(), info.notes.end());
  return checkpoint;
}

LoadedModel load_model(const std::filesystem::path& directory, backend::Backend& backend, int32_t max_rows) {
  Checkpoint checkpoint = open_checkpoint(directory);
  LoadedModel loaded;
  loaded.model = checkpoint.family->load(checkpoint.config.json, *checkpoint.store, backend, max_rows);
  loaded.generation = std::move(checkpoint.config.generation);
  loaded.notes = std::move(checkpoint.notes);
  const bool declared = checkpoint.family->describe(checkpoint.config.json).draft_head;
  if (declared && loaded.model->draft_head() == nullptr) loaded.notes.emplace_back("the checkpoint has no MTP head");
  loaded.config = std::move(checkpoint.config.json);
  return loaded;
}

LoadedModel load_synthetic(const nlohmann::json& config, uint64_t seed, backend::Backend& backend, int32_t max_rows) {
  const Family& family = require_family(config);
  const std::vector<TensorSpec> inventory = family.inventory(config, {});
  const format::Quantization quantization = format::Quantization::parse(config);
  const auto store = make_synthetic_store(inventory, quantization, seed);
  check_inventory(inventory, family.skipped, *store, quantization);
  LoadedModel loaded;
  loaded.model = family.load(config, *store, backend, max_rows);
  loaded.generation.end_tokens = format::end_tokens(config);
  loaded.config = config;
  loaded.notes = {"synthetic weights"};
  return loaded;
}

CheckpointReport describe_checkpoint(const std::filesystem::path& directory) {
  format::CheckpointConfig config = format::load_config(directory);
  CheckpointReport report;
  report.family = &require_family(config.json);
  report.info = report.family->describe(config.json);
  const format::Quantization quantization = format::Quantization::parse(config.json);
  report.quantization = quantization.describe();
  std::vector<TensorSpec> model = report.family->inventory(config.json, {});
  const auto head =
      std::stable_partition(model.begin(), model.end(), [](const TensorSpec& spec) { return !spec.draft_head; });
  report.weights = count_bytes(std::span(model.begin(), head), quantization);
  report.draft_head_bytes = count_bytes(std::span(head, model.end()), quantization).total;
  report.cache = report.family->cache_layout(config.json);
  report.generation = std::move(config.generation);
  try {
    const std::vector<std::string> names = format::SafetensorsStore::open_directory(directory)->names();
    const std::vector<TensorSpec> present = report.family->inventory(config.json, names);
    report.draft_head_found =
        std::any_of(present.begin(), present.end(), [](const TensorSpec& spec) { return spec.draft_head; });
  } catch (const Error& error) {
    report.files_problem = error.what();
  }
  return report;
}

int64_t paged_values(const backend::CacheLayout& layout) {
  int64_t values = 0;
  for (const backend::CacheEntry& entry : layout.entries) {
    if (const auto* paged = std::get_if<backend::PagedEntry>(&entry)) values += paged->width;
  }
  return values;
}

int64_t state_values(const backend::CacheLayout& layout) {
  int64_t values = 0;
  for (const backend::CacheEntry& entry : layout.entries) {
    const auto* state = std::get_if<backend::StateEntry>(&entry);
    if (state == nullptr) continue;
    values += std::visit([](const auto& shape) { return shape.state_values(); }, state->shape);
  }
  return values;
}

}  // namespace tensorfold::families
