// tensorfold rm REPO
#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/hub_access.h"

namespace tensorfold::cli {
namespace {

struct RemoveArguments {
  std::string repo;
  bool yes = false;
};

/// Asks on the terminal; without one nothing is confirmed.
bool confirmed(const std::string& question) {
  if (::isatty(STDIN_FILENO) == 0)
    fail(ErrorKind::invalid_request, "nobody to ask: use --yes to remove without asking");
  fmt::print("{} [y/N] ", question);
  std::fflush(stdout);
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

int remove(const RemoveArguments& arguments) {
  const auto repo = hub::parse_repo(arguments.repo);
  if (!repo) fail(ErrorKind::invalid_request, "'{}' is no repository's name (owner/name)", arguments.repo);
  if (!repo->revision.empty())
    fail(ErrorKind::unsupported, "rm removes a model with all its revisions: leave '@{}' out", repo->revision);
  const hub::Cache cache(hub::Settings::from_environment().cache_root);
  uint64_t bytes = 0;
  for (const hub::CachedModel& model : cache.list())
    if (model.id == repo->id()) bytes = model.bytes;
  if (!std::filesystem::exists(cache.repo_directory(*repo)))
    fail(ErrorKind::not_found, "{} is not in the cache {}", repo->id(), cache.root().string());
  const std::string question =
      fmt::format("Remove {} ({}) from {}?", repo->id(), hub::human_bytes(bytes), cache.root().string());
  if (!arguments.yes && !confirmed(question)) return 1;
  fmt::print("[tensorfold] removed {}: {} freed\n", repo->id(), hub::human_bytes(cache.remove(*repo)));
  return 0;
}

}  // namespace

Command remove_command() {
  const auto arguments = std::make_shared<RemoveArguments>();
  Command command;
  command.name = "rm";
  command.summary = "Remove a model from the cache";
  command.positionals.push_back({"REPO", "owner/name", &arguments->repo});
  command.options.push_back({"--yes", "", "do not ask", "", &arguments->yes, {}});
  command.run = [arguments] { return remove(*arguments); };
  return command;
}

}  // namespace tensorfold::cli
