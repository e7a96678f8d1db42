// tensorfold pull REPO [REPO ...]
#include <memory>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/draft_models.h"
#include "cli/hub_access.h"

namespace tensorfold::cli {
namespace {

struct PullArguments {
  std::vector<std::string> repos;
  bool all = false;
  bool unchecked = false;
  int32_t connections = 8;
};

/// Which draft head came with a model, or which command gets its draft model.
void print_draft_models(const std::filesystem::path& directory) {
  families::CheckpointReport report;
  try {
    report = families::describe_checkpoint(directory);
  } catch (const Error&) {
    return;  // a draft model, or fetched unchecked
  }
  if (report.draft_head_found.value_or(false)) fmt::print("[tensorfold] with its draft head\n");
  for (const std::string& hint : draft_hints(report)) fmt::print("[tensorfold] {}\n", hint);
}

int pull(const PullArguments& arguments) {
  std::vector<hub::RepoId> repos;
  for (const std::string& text : arguments.repos) {
    const auto repo = hub::parse_repo(text);
    if (!repo)
      fail(ErrorKind::invalid_request, "'{}' is no repository's name (owner/name or owner/name@revision)", text);
    repos.push_back(*repo);
  }
  const InterruptFlag interrupt;
  const HubAccess access(interrupt.flag());
  const auto progress = hub::progress_for(stdout, "[tensorfold] ");
  hub::PullOptions options;
  options.all = arguments.all;
  options.connections = arguments.connections;
  for (const hub::RepoId& repo : repos) {
    const hub::ConfigCheck check = arguments.unchecked ? hub::ConfigCheck{} : servable_check(*progress);
    const hub::PullResult result = hub::pull(access.client, access.cache, repo, options, *progress, check);
    fmt::print("[tensorfold] {} is ready: {} ({} fetched now)\n[tensorfold] {}\n", repo.id(),
               hub::human_bytes(result.bytes), hub::human_bytes(result.fetched_bytes), result.directory.string());
    print_draft_models(result.directory);
  }
  return 0;
}

}  // namespace

Command pull_command() {
  const auto arguments = std::make_shared<PullArguments>();
  Command command;
  command.name = "pull";
  command.summary = "Download models or draft models";
  command.description =
      "Fetches what is missing of each repository into the Hugging Face cache, checks every file, and goes on where an "
      "earlier pull stopped. Only files this program reads are fetched. HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN "
      "and "
      "HF_HUB_OFFLINE are obeyed.";
  command.positionals.push_back({"REPO", "owner/name or owner/name@revision", &arguments->repos});
  command.options.push_back({"--all", "", "fetch every file of the repository", "", &arguments->all, {}});
  command.options.push_back(
      {"--unchecked", "", "fetch also a model that no family here serves", "", &arguments->unchecked, {}});
  command.options.push_back({"--connections", "N", "parallel connections", "", &arguments->connections, {}});
  command.run = [arguments] { return pull(*arguments); };
  return command;
}

}  // namespace tensorfold::cli
