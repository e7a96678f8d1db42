#include "cli/draft_models.h"

#include <chrono>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/known_models.h"
#ifdef TENSORFOLD_HAS_HUB
#include "cli/hub_access.h"
#endif

namespace tensorfold::cli {
namespace {

bool lacks_draft_head(const families::CheckpointReport& report) {
  return report.info.draft_head && report.draft_head_found.has_value() && !*report.draft_head_found;
}

}  // namespace

std::vector<std::string> draft_hints(const families::CheckpointReport& report) {
  std::vector<std::string> hints;
  const KnownModel* with_head = model_with_head_file(report);
  if (lacks_draft_head(report) && with_head != nullptr)
    hints.push_back(fmt::format("its draft head lies in {} of {}: `tensorfold pull {}` gets it; same replies, faster",
                                with_head->head_file, with_head->repo, with_head->repo));
  const KnownDrafter* drafter = known_drafter(report.info);
  if (drafter != nullptr && !cached_drafter(report.info))
    hints.push_back(fmt::format("no draft model here: `tensorfold pull {}` gets it ({}); same replies, faster",
                                drafter->repo, drafter->size));
  return hints;
}

#ifdef TENSORFOLD_HAS_HUB

std::optional<std::filesystem::path> cached_drafter(const families::ModelInfo& info) {
  const KnownDrafter* drafter = known_drafter(info);
  return drafter == nullptr ? std::nullopt : cached_model(std::string(drafter->repo));
}

std::string with_draft_head(const std::string& model, const std::string& directory) {
  const auto repo = hub::parse_repo(model);
  std::error_code ignored;
  if (!repo || std::filesystem::is_directory(model, ignored)) return directory;
  if (!lacks_draft_head(families::describe_checkpoint(directory))) return directory;
  const InterruptFlag interrupt;
  const HubAccess access(interrupt.flag(), hub::RetryPolicy{.attempts = 1});
  const auto snapshot = access.cache.locate(*repo);
  if (!snapshot || access.settings.offline) return directory;
  const auto progress = hub::progress_for(stderr, "[tensorfold] ");
  try {
    const auto completed = hub::add_side_files(access.client, access.cache, *repo, *snapshot, {}, *progress);
    if (!completed) return directory;
    progress->note(fmt::format("{} was completed with its draft head", repo->id()));
    return completed->string();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::cancelled) throw;
    progress->note(fmt::format("the draft head of {} could not be fetched: {}", repo->id(), error.what()));
    return directory;
  }
}

#else

std::optional<std::filesystem::path> cached_drafter(const families::ModelInfo&) { return std::nullopt; }

std::string with_draft_head(const std::string&, const std::string& directory) { return directory; }

#endif

}  // namespace tensorfold::cli
