#include "cli/model_report.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/known_models.h"
#include "cli/memory_plan.h"
#include "cli/option_pages.h"
#ifdef TENSORFOLD_HAS_HUB
#include "cli/hub_access.h"
#endif
#include "families/checkpoint.h"
#include "format/config.h"
#include "format/problem_list.h"

namespace tensorfold::cli {
namespace {

using nlohmann::json;

template <typename Value>
void add(ModelReport& report, const char* name, const Value& value) {
  report.lines.emplace_back(name, fmt::format("{}", value));
}

template <typename Value>
void add_known(ModelReport& report, const char* name, const std::optional<Value>& value) {
  if (value) add(report, name, *value);
}

std::string text_of(const json& value) {
  return value.is_string() ? format::printable(value.get<std::string>()) : format::printable_json(value);
}

/// A number or text of the config, wherever its language model's fields stand; nothing for anything else.
std::optional<std::string> field_of(const json& config, const char* key) {
  for (const json* object : {&format::text_config(config), &config}) {
    const auto found = object->find(key);
    if (found == object->end()) continue;
    if (found->is_string() || found->is_number()) return text_of(*found);
  }
  return std::nullopt;
}

void add_experts(ModelReport& report, const json& config) {
  for (const char* all : {"n_routed_experts", "num_experts", "num_local_experts"}) {
    const auto experts = field_of(config, all);
    if (!experts || *experts == "0") continue;
    auto chosen = field_of(config, "num_experts_per_tok");
    if (!chosen) chosen = field_of(config, "top_k_experts");
    return add(report, "experts", chosen ? *experts + ", " + *chosen + " a token" : *experts);
  }
}

/// What can be said of a config that is not served.
void describe_unserved(ModelReport& report, const json& config, const std::string& reason) {
  add_known(report, "model_type", field_of(config, "model_type"));
  if (const auto names = config.find("architectures"); names != config.end() && names->is_array() && !names->empty())
    add(report, "architecture", text_of(names->front()));
  add_known(report, "layers", field_of(config, "num_hidden_layers"));
  add_known(report, "hidden size", field_of(config, "hidden_size"));
  add_experts(report, config);
  add_known(report, "vocabulary", field_of(config, "vocab_size"));
  add_known(report, "context", field_of(config, "max_position_embeddings"));
  for (const char* key : {"quantization", "quantization_config"}) {
    const auto block = config.find(key);
    if (block == config.end() || !block->is_object()) continue;
    for (const char* name : {"quant_method", "mode"})
      if (block->contains(name)) add(report, "quantization", text_of((*block)[name]));
    break;
  }
  add(report, "served", "no: " + reason);
}

std::string memory_text(const MemoryNeeds& needs, const Machine& machine, int32_t context) {
  const uint64_t bytes = needs.weights + cache_bytes(needs, context, 1);
  return fmt::format("{} with {} tokens on {}{}", gigabytes(bytes), context, machine.is_gpu ? "the GPU" : machine.name,
                     bytes <= usable_memory(machine) ? "" : " (more than this machine has for it)");
}

void add_memory(ModelReport& report, const families::CheckpointReport& checkpoint, int32_t context) {
  const Machine machine = machine_of("auto", 0);
  const MemoryNeeds needs = memory_needs(checkpoint, machine);
  const int32_t native = checkpoint.info.native_context;
  std::vector<int32_t> contexts = {std::min(8'192, native), native};
  if (context > 0) contexts = {context};
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  for (const int32_t tokens : contexts) add(report, "memory", memory_text(needs, machine, tokens));
}

void add_draft_head(ModelReport& report, const families::CheckpointReport& checkpoint) {
  if (!checkpoint.info.draft_head) return add(report, "draft head", "none in its configuration");
  const std::string size = gigabytes(checkpoint.draft_head_bytes);
  if (checkpoint.draft_head_found.value_or(false)) return add(report, "draft head", "in these files, " + size);
  const KnownModel* with_head = model_with_head_file(checkpoint);
  if (!checkpoint.draft_head_found) {
    const std::string file = with_head == nullptr ? "" : fmt::format(", in {}", with_head->head_file);
    return add(report, "draft head", size + " by its configuration" + file + "; its files are not here");
  }
  const std::string get = with_head == nullptr ? "" : fmt::format(": `tensorfold pull {}` gets it", with_head->repo);
  add(report, "draft head", "missing in these files" + get);
}

void add_drafter(ModelReport& report, const families::CheckpointReport& checkpoint) {
  const KnownDrafter* drafter = known_drafter(checkpoint.info);
  if (drafter == nullptr) return;
#ifdef TENSORFOLD_HAS_HUB
  if (cached_model(std::string(drafter->repo)))
    return add(report, "drafter", fmt::format("{}, in the cache", drafter->repo));
#endif
  add(report, "drafter",
      fmt::format("{}, not here: `tensorfold pull {}` gets it ({})", drafter->repo, drafter->repo, drafter->size));
}

void describe_served(ModelReport& report, const std::string& model, const json& config,
                     const families::CheckpointReport& checkpoint, int32_t context) {
  add(report, "family", checkpoint.family->title);
  add(report, "model_type", checkpoint.info.model_type);
  add(report, "layers", checkpoint.info.layers);
  add(report, "hidden size", checkpoint.info.hidden_size);
  add_experts(report, config);
  add(report, "vocabulary", checkpoint.info.vocabulary_size);
  add(report, "context", checkpoint.info.native_context);
  add(report, "quantization", checkpoint.quantization);
  add(report, "weights",
      fmt::format("{:.3f} GB, {:.3f} GB read for each token", static_cast<double>(checkpoint.weights.total) / 1e9,
                  static_cast<double>(checkpoint.weights.read) / 1e9));
  add(report, "cache",
      fmt::format("{} values a token, {} values of state a conversation", families::paged_values(checkpoint.cache),
                  families::state_values(checkpoint.cache)));
  add_memory(report, checkpoint, context);
  add_draft_head(report, checkpoint);
  add_drafter(report, checkpoint);
  add_known(report, "temperature", checkpoint.generation.temperature);
  add_known(report, "top_p", checkpoint.generation.top_p);
  add_known(report, "top_k", checkpoint.generation.top_k);
  add_known(report, "min_p", checkpoint.generation.min_p);
  add(report, "end tokens", fmt::format("{}", fmt::join(checkpoint.generation.end_tokens, ", ")));
  for (const std::string& note : checkpoint.info.notes) add(report, "note", note);
  if (const std::string note = untested_note(model, checkpoint.info.model_type); !note.empty())
    add(report, "note", note);
  if (!checkpoint.files_problem.empty()) add(report, "files", checkpoint.files_problem);
  add(report, "served", "yes");
}

}  // namespace

ModelReport report_model(const std::string& model, const std::filesystem::path& directory, int32_t context) {
  ModelReport report;
  const json config = format::load_config(directory).json;
  families::CheckpointReport checkpoint;
  try {
    checkpoint = families::describe_checkpoint(directory);
  } catch (const Error& reason) {
    describe_unserved(report, config, reason.what());
    return report;
  }
  if (context > checkpoint.info.native_context)
    fail(ErrorKind::invalid_request, "--context {} is more than the model's window of {} tokens", context,
         checkpoint.info.native_context);
  describe_served(report, model, config, checkpoint, context);
  report.served = true;
  return report;
}

std::string report_text(const ModelReport& report) {
  constexpr size_t kIndent = 18;
  std::string text;
  for (const auto& [name, value] : report.lines) text += wrapped(name, value, kIndent);
  return text;
}

}  // namespace tensorfold::cli
