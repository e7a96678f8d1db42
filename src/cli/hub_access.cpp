#include "cli/hub_access.h"

#include <csignal>
#include <cstdlib>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
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

uint64_t memory_bytes() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

void check_servable(const hub::ModelPreview& preview, hub::Progress& progress) {
  const format::CheckpointConfig config = format::load_config(preview.directory);
  if (hub::is_non_commercial(preview.license))
    progress.note(fmt::format("note: {} is licensed {}: not for commercial use", preview.repo.id(), preview.license));
  if (config.json.contains("dflash_config")) return;
  try {
    (void)families::describe_checkpoint(preview.directory);
  } catch (const Error& error) {
    fail(error.kind(), "{} cannot be served, nothing more is fetched: {}", preview.repo.id(), error.what());
  }
  if (preview.weight_bytes > memory_bytes())
    progress.note(fmt::format("note: {} of weights; this machine has {} of memory besides its GPUs'",
                              hub::human_bytes(preview.weight_bytes), hub::human_bytes(memory_bytes())));
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

HubAccess::HubAccess(const std::atomic<bool>* cancel)
    : settings(hub::Settings::from_environment()),
      client(settings, {}, http_options(cancel)),
      cache(settings.cache_root) {}

hub::ConfigCheck servable_check(hub::Progress& progress) {
  return [&progress](const hub::ModelPreview& preview) { check_servable(preview, progress); };
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
        fmt::print("[tensorfold] {}\n", line);
        std::fflush(stdout);
      });
}

}  // namespace tensorfold::cli
