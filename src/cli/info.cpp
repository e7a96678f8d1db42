// tensorfold info MODEL, tensorfold models
#include <memory>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/known_models.h"
#include "cli/model_directory.h"
#include "cli/model_report.h"
#include "cli/option_pages.h"
#ifdef TENSORFOLD_HAS_HUB
#include "cli/hub_access.h"
#endif
#include "families/model.h"

namespace tensorfold::cli {
namespace {

struct InfoArguments {
  std::string model;
  int32_t context = 0;
};

int info(const InfoArguments& arguments) {
  if (arguments.context < 0) fail(ErrorKind::invalid_request, "--context must be 0 or a positive token count");
  const ModelReport report = report_model(arguments.model, config_directory(arguments.model), arguments.context);
  fmt::print("{}", report_text(report));
  return report.served ? 0 : 1;
}

void print_known(const families::Family& family) {
  constexpr size_t kIndent = 16;
  fmt::print("{}", wrapped(family.model_type, family.title, kIndent));
  if (!family.aliases.empty())
    fmt::print("{}", wrapped("", fmt::format("also read as {}", fmt::join(family.aliases, ", ")), kIndent));
  for (const KnownModel& model : known_models()) {
    if (model.family != family.model_type) continue;
    const std::string size = model.size.empty() ? "" : fmt::format(" ({})", model.size);
    fmt::print("{}", wrapped("", fmt::format("{}{}", model.repo, size), kIndent));
  }
  for (const KnownDrafter& drafter : known_drafters())
    if (drafter.family == family.model_type)
      fmt::print("{}", wrapped("", fmt::format("drafter: {} ({})", drafter.repo, drafter.size), kIndent));
}

int models() {
  for (const families::Family& family : families::all_families()) print_known(family);
#ifdef TENSORFOLD_HAS_HUB
  print_cached_models();
#endif
  return 0;
}

}  // namespace

Command info_command() {
  const auto arguments = std::make_shared<InfoArguments>();
  Command command;
  command.name = "info";
  command.summary = "Say what a checkpoint is and which family would serve it";
  command.description =
      "Reads the configuration alone: a model need not be downloaded. Exit code 0: it can be served, 1: it cannot.";
  command.positionals.push_back({"MODEL", "directory or owner/name", &arguments->model});
  command.options.push_back({"--context",
                             "N",
                             "tell the memory of a conversation of so many tokens; 0: of usual ones",
                             "",
                             &arguments->context,
                             {}});
  command.run = [arguments] { return info(*arguments); };
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
