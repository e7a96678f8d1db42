#include "cli/hub_access.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include <fmt/format.h>

#include "base/console.h"
#include "base/error.h"
#include "cli/memory_plan.h"
#include "cli/version.h"
#include "families/checkpoint.h"
#include "format/config.h"

namespace tensorfold::cli {
namespace {

std::atomic<bool> interrupted{false};
struct sigaction old_interrupt{};
struct sigaction old_terminate{};

void set_interrupted(int) { interrupted = true; }

hub::HttpOptions http_options(const std::atomic<bool>* cancel) {
  hub::HttpOptions http;
  http.cancel = cancel;
  http.user_agent = fmt::format("tensorfold/{}", version());
  return http;
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return false;
  const std::string text = value;
  return text == "1" || text == "true" || text == "yes" || text == "on";
}

/// Throws when the weights and the smallest caches exceed every memory of this machine; notes when they leave no room.
void check_memory(const hub::ModelPreview& preview, const families::CheckpointReport& report, hub::Progress& progress) {
  bool fits = false;
  uint64_t largest = 0;
  uint64_t least = UINT64_MAX;
  for (const char* backend : {"auto", "cpu"}) {
    const Machine machine = machine_of(backend, 0);
    const MemoryNeeds needs = memory_needs(report, machine);
    const uint64_t bytes = needs.weights + cache_bytes(needs, std::min(256, report.info.native_context), 1);
    largest = std::max(largest, machine.memory);
    least = std::min(least, bytes);
    fits |= bytes <= usable_memory(machine);
  }
  if (least > largest)
    fail(ErrorKind::capacity,
         "{} needs {} of memory and this machine has {}: nothing more is fetched (`tensorfold pull --unchecked {}` "
         "fetches it all the same)",
         preview.repo.id(), gigabytes(least), gigabytes(largest), preview.repo.id());
  if (!fits)
    progress.note(fmt::format("note: {} needs {} of the {} of memory here: `tensorfold plan {}` says what fits",
                              preview.repo.id(), gigabytes(least), gigabytes(largest), preview.repo.id()));
}

void check_servable(const hub::ModelPreview& preview, hub::Progress& progress) {
  const format::CheckpointConfig config = format::load_config(preview.directory);
  if (hub::is_non_commercial(preview.license))
    progress.note(fmt::format("note: {} is licensed {}: not for commercial use", preview.repo.id(), preview.license));
  if (config.json.contains("dflash_config")) return;
  families::CheckpointReport report;
  try {
    report = families::describe_checkpoint(preview.directory);
  } catch (const Error& error) {
    fail(error.kind(), "{} cannot be served, nothing more is fetched: {}", preview.repo.id(), error.what());
  }
  check_memory(preview, report, progress);
}

}  // namespace

InterruptFlag::InterruptFlag() {
  interrupted = false;
  struct sigaction action{};
  action.sa_handler = set_interrupted;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, &old_interrupt);
  ::sigaction(SIGTERM, &action, &old_terminate);
}

InterruptFlag::~InterruptFlag() {
  ::sigaction(SIGINT, &old_interrupt, nullptr);
  ::sigaction(SIGTERM, &old_terminate, nullptr);
}

const std::atomic<bool>* InterruptFlag::flag() const { return &interrupted; }

HubAccess::HubAccess(const std::atomic<bool>* cancel, hub::RetryPolicy retry)
    : settings(hub::Settings::from_environment()),
      client(settings, retry, http_options(cancel)),
      cache(settings.cache_root) {}

hub::ConfigCheck servable_check(hub::Progress& progress) {
  return [&progress](const hub::ModelPreview& preview) { check_servable(preview, progress); };
}

std::optional<std::filesystem::path> cached_model(const std::string& name) {
  const auto repo = hub::parse_repo(name);
  if (!repo) return std::nullopt;
  const hub::Cache cache(hub::Settings::from_environment().cache_root);
  const auto snapshot = cache.locate(*repo);
  if (!snapshot || !hub::Cache::missing_files(*snapshot).empty()) return std::nullopt;
  return snapshot->directory;
}

void print_cached_models() {
  const hub::Cache cache(hub::Settings::from_environment().cache_root);
  const auto models = cache.list();
  fmt::print("In the cache {}:\n", cache.root().string());
  if (models.empty()) fmt::print("  nothing yet: `tensorfold pull OWNER/NAME` fetches a model\n");
  for (const hub::CachedModel& model : models) {
    fmt::print(
        "  {:>9}  {}{}\n", hub::human_bytes(model.bytes), model.id,
        model.complete ? "" : (model.partial_bytes > 0 ? "  (unfinished: pull it again)" : "  (no complete model)"));
  }
}

std::filesystem::path program_cache() {
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0')
    return std::filesystem::path(xdg) / "tensorfold";
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr ? "/tmp" : home) / ".cache" / "tensorfold";
}

std::string release_list_url() {
  if (const char* url = std::getenv("TENSORFOLD_RELEASES"); url != nullptr && *url != '\0') return url;
  return TENSORFOLD_RELEASE_URL;
}

std::string release_key() { return TENSORFOLD_RELEASE_KEY; }

std::unique_ptr<hub::ReleaseCheck> begin_release_check(bool off) {
  const std::string url = release_list_url();
  if (off || url.empty() || is_set("TENSORFOLD_NO_UPDATE_CHECK") || hub::Settings::from_environment().offline)
    return nullptr;
  return std::make_unique<hub::ReleaseCheck>(
      hub::ReleaseCheckOptions{
          .list_url = url, .version = std::string(version()), .memory = program_cache() / "update-check.json"},
      [](const std::string& line) {
        say_line(stdout, "[tensorfold] " + line);
        std::fflush(stdout);
      });
}

}  // namespace tensorfold::cli
