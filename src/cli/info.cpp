// tensorfold info MODEL, tensorfold models
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/model_directory.h"
#ifdef TENSORFOLD_HAS_HUB
#include "cli/hub_access.h"
#endif
#include "families/checkpoint.h"

namespace tensorfold::cli {
namespace {

template <typename Value>
void print_field(const char* name, const Value& value) {
  fmt::print("{:<18}{}\n", name, value);
}

template <typename Value>
void print_default(const char* name, const std::optional<Value>& value) {
  if (value) print_field(name, *value);
}

int info(const std::string& model) {
  const families::CheckpointReport report = families::describe_checkpoint(config_directory(model));
  print_field("family", report.family->title);
  print_field("model_type", report.info.model_type);
  print_field("layers", report.info.layers);
  print_field("hidden size", report.info.hidden_size);
  print_field("vocabulary", report.info.vocabulary_size);
  print_field("context", report.info.native_context);
  print_field("quantization", report.quantization);
  print_field("weights",
              fmt::format("{:.3f} GB, {:.3f} GB read for each token", static_cast<double>(report.weights.total) / 1e9,
                          static_cast<double>(report.weights.read) / 1e9));
  print_field("draft head", !report.draft_head_found ? "not looked for" : *report.draft_head_found ? "yes" : "no");
  print_field("cache", fmt::format("{} values a token, {} values of state a conversation",
                                   families::paged_values(report.cache), families::state_values(report.cache)));
  print_default("temperature", report.generation.temperature);
  print_default("top_p", report.generation.top_p);
  print_default("top_k", report.generation.top_k);
  print_default("min_p", report.generation.min_p);
  print_field("end tokens", fmt::format("{}", fmt::join(report.generation.end_tokens, ", ")));
  for (const std::string& note : report.info.notes) print_field("note", note);
  if (!report.files_problem.empty()) print_field("files", report.files_problem);
  return 0;
}

int models() {
  for (const families::Family& family : families::all_families()) {
    fmt::print("{:<16}{}\n", family.model_type, family.title);
    if (!family.aliases.empty()) fmt::print("{:<16}also read as {}\n", "", fmt::join(family.aliases, ", "));
  }
#ifdef TENSORFOLD_HAS_HUB
  print_cached_models();
#endif
  return 0;
}

}  // namespace

Command info_command() {
  const auto model = std::make_shared<std::string>();
  Command command;
  command.name = "info";
  command.summary = "Say what a checkpoint is and which family would serve it";
  command.positionals.push_back({"MODEL", "directory or owner/name", model.get()});
  command.run = [model] { return info(*model); };
  return command;
}

Command models_command() {
  Command command;
  command.name = "models";
  command.summary = "List the model families and the models in the cache";
  command.run = [] { return models(); };
  return command;
}

}  // namespace tensorfold::cli
