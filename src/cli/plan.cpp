// tensorfold plan MODEL: does it fit, and what would?
#include <memory>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/memory_plan.h"
#include "cli/model_directory.h"
#include "cli/option_pages.h"
#include "families/checkpoint.h"

namespace tensorfold::cli {
namespace {

struct PlanArguments {
  std::string model;
  std::string backend = "auto";
  int32_t device = 0;
  int32_t context = 0;
  int32_t parallel = 1;
  double memory_gib = 0;
};

void line(const char* name, const std::string& text) { fmt::print("{}", wrapped(name, text, 24)); }

int plan(const PlanArguments& arguments) {
  if (arguments.context < 0 || arguments.parallel < 1 || arguments.parallel > 9999 || !is_memory(arguments.memory_gib))
    fail(ErrorKind::invalid_request, "--context and --memory-gib are 0 or more, --parallel is 1 to 9999");
  const families::CheckpointReport report = families::describe_checkpoint(config_directory(arguments.model));
  if (arguments.context > report.info.native_context)
    fail(ErrorKind::invalid_request, "--context {} is more than the model's window of {} tokens", arguments.context,
         report.info.native_context);
  Machine machine = machine_of(arguments.backend, arguments.device);
  if (arguments.memory_gib > 0) machine.memory = static_cast<uint64_t>(arguments.memory_gib * 1073741824.0);

  const MemoryNeeds needs = memory_needs(report, machine);
  const int32_t context = arguments.context > 0 ? arguments.context : report.info.native_context;
  const MemoryPlan result = plan_memory(needs, machine, context, arguments.parallel);

  line("model", fmt::format("{} ({}, {})", arguments.model, report.info.title, report.quantization));
  line("weights", gigabytes(needs.weights));
  line("a token's cache", fmt::format("{:.1f} kB", static_cast<double>(needs.token) / 1e3));
  line("a conversation's state", fmt::format("{:.1f} MB", static_cast<double>(needs.state) / 1e6));
  line("caches", fmt::format("{} for {} x {} tokens", gigabytes(result.caches), arguments.parallel, context));
  line("needed", gigabytes(result.needed));
  line("memory",
       fmt::format("{} of {}, {} of it for models", gigabytes(machine.memory), machine.name, gigabytes(result.budget)));
  if (result.fits) {
    line("fits", fmt::format("yes, with {} to spare for kept prefixes", gigabytes(result.budget - result.needed)));
    return 0;
  }
  line("fits", "no");
  if (result.most_context > 0)
    line("would fit", fmt::format("--context {} --parallel {}", result.most_context, arguments.parallel));
  if (result.most_parallel > 0)
    line("would fit", fmt::format("--context {} --parallel {}", context, result.most_parallel));
  if (result.most_context == 0 && result.most_parallel == 0)
    line("would fit", fmt::format("a machine with {}", gigabytes(result.smallest_memory)));
  return 1;
}

}  // namespace

Command plan_command() {
  const auto arguments = std::make_shared<PlanArguments>();
  Command command;
  command.name = "plan";
  command.summary = "Say whether a model fits this machine, and what would";
  command.description =
      "Reads the configuration alone: a model need not be downloaded. Counts weights, caches, recurrent state and the "
      "states that are kept; kept pages come on top. Exit code 0: it fits, 1: it does not.";
  command.positionals.push_back({"MODEL", "directory or owner/name", &arguments->model});
  command.options.push_back(
      {"--context", "N", "tokens of one conversation; 0: the model's window", "", &arguments->context, {}});
  command.options.push_back({"--parallel", "N", "replies made at the same time", "", &arguments->parallel, {}});
  command.options.push_back(
      {"--backend", "NAME", "whose memory counts", "", &arguments->backend, {"auto", "cpu", "cuda"}});
  command.options.push_back({"--device", "N", "CUDA device", "", &arguments->device, {}});
  command.options.push_back(
      {"--memory-gib", "F", "plan for this much memory; 0: what is here", "", &arguments->memory_gib, {}});
  command.run = [arguments] { return plan(*arguments); };
  return command;
}

}  // namespace tensorfold::cli
