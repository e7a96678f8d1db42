// What the commands share of the hub: settings from the environment, a Ctrl-C that can be resumed, and the check that
// refuses a model no family here serves before its weights are fetched.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "hub/pull.h"
#include "hub/release.h"

namespace tensorfold::cli {

/// While it lives, the first SIGINT or SIGTERM sets a flag; the second ends the program as usual.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;
  [[nodiscard]] const std::atomic<bool>* flag() const;
};

/// The hub and the cache as the environment names them.
struct HubAccess {
  hub::Settings settings;
  hub::Client client;
  hub::Cache cache;

  explicit HubAccess(const std::atomic<bool>* cancel, hub::RetryPolicy retry = {});
};

/// Refuses what cannot be served: an unread config, an unknown family, an unread format, more weights than this machine
/// has memory. A drafter's config passes. `progress` gets a line for a licence that forbids commercial use and for
/// weights that leave too little memory.
hub::ConfigCheck servable_check(hub::Progress& progress);

/// The folder of a repository that is complete in the cache, without a network.
std::optional<std::filesystem::path> cached_model(const std::string& name);

/// The models in the cache with their sizes, a line each, to standard output.
void print_cached_models();

/// `~/.cache/tensorfold`, or where XDG_CACHE_HOME says.
std::filesystem::path program_cache();

/// The address of the release list and the key of the releases, from the build; empty where the build names none.
std::string release_list_url();
std::string release_key();

/// Starts looking for a newer release, unless `off`, TENSORFOLD_NO_UPDATE_CHECK or HF_HUB_OFFLINE says no or the build
/// names no list; a newer one is said in one line on standard output. Never waits; null when there is nothing to do.
std::unique_ptr<hub::ReleaseCheck> begin_release_check(bool off);

}  // namespace tensorfold::cli
