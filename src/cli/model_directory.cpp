#include "cli/model_directory.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/presence.h"
#ifdef TENSORFOLD_HAS_HUB
#include "cli/hub_access.h"
#endif

namespace tensorfold::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhatIsAModel = "MODEL is a folder with config.json and *.safetensors files, or owner/name";

bool is_folder(const std::string& model) {
  std::error_code error;
  const bool folder = fs::is_directory(model, error);
  // Such as a loop of links, or a folder above it that may not be entered.
  const bool absent = !error || error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (!absent && error != std::errc::filename_too_long)
    fail(ErrorKind::io, "cannot look at {}: {}", model, error.message());
  return folder;
}

bool holds(const fs::path& folder, const std::string& ending) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().ends_with(ending)) return true;
  return false;
}

/// Throws for a folder that is no checkpoint, saying what it is instead.
void check_folder(const std::string& folder) {
  std::error_code error;
  const fs::path path(folder);
  if (has_file(path / "config.json")) return;
  if (fs::is_empty(path, error)) fail(ErrorKind::not_found, "the folder {} is empty: {}", folder, kWhatIsAModel);
  if (holds(path, ".gguf"))
    fail(ErrorKind::unsupported,
         "{} holds GGUF files, which are not read here: `tensorfold models` names repositories that are", folder);
  if (fs::is_directory(path / "snapshots", error))
    fail(ErrorKind::not_found,
         "{} is a folder of the cache: name the model as owner/name, or a folder of its snapshots", folder);
  fail(ErrorKind::not_found, "{} has no config.json: {}", folder, kWhatIsAModel);
}

/// Throws for a word that can be no repository's name, saying why.
[[noreturn]] void fail_argument(const std::string& model) {
  std::error_code ignored;
  if (fs::exists(model, ignored)) {
    const bool gguf = model.ends_with(".gguf");
    fail(gguf ? ErrorKind::unsupported : ErrorKind::invalid_request, "{} is a file{}: {}", model,
         gguf ? ", and GGUF is not read here" : "", kWhatIsAModel);
  }
  if (const size_t scheme = model.find("://"); scheme != std::string::npos) {
    const size_t path = model.find('/', scheme + 3);
    fail(ErrorKind::invalid_request, "give the repository by its name alone: {}",
         path == std::string::npos ? "owner/name" : model.substr(path + 1));
  }
  if (model.starts_with('/') || model.starts_with('.') || model.starts_with('~') ||
      std::count(model.begin(), model.end(), '/') > 1)
    fail(ErrorKind::not_found, "there is no folder {}", model);
  fail(ErrorKind::invalid_request,
       "'{}' is neither a folder nor a repository's name (owner/name or owner/name@revision)", model);
}

}  // namespace

#ifdef TENSORFOLD_HAS_HUB

std::string model_directory(const std::string& model) {
  if (is_folder(model)) return check_folder(model), model;
  std::error_code ignored;
  if (fs::exists(model, ignored) || !hub::parse_repo(model)) fail_argument(model);
  const InterruptFlag interrupt;
  const HubAccess access(interrupt.flag());
  const auto progress = hub::progress_for(stderr, "[tensorfold] ");
  return hub::resolve_model(access.client, access.cache, model, {}, *progress, servable_check(*progress)).string();
}

std::string config_directory(const std::string& model) {
  std::error_code ignored;
  const auto repo = fs::exists(model, ignored) ? std::nullopt : hub::parse_repo(model);
  if (!repo) return model_directory(model);  // a folder, or the words for what is neither
  const InterruptFlag interrupt;
  const HubAccess access(interrupt.flag());
  hub::SilentProgress silent;
  return hub::fetch_config(access.client, access.cache, *repo, silent).string();
}

#else

std::string model_directory(const std::string& model) {
  if (is_folder(model)) return check_folder(model), model;
  if (std::count(model.begin(), model.end(), '/') != 1 || model.starts_with('/') || model.starts_with('.'))
    fail_argument(model);
  fail(ErrorKind::not_found, "'{}' is not a folder, and this build cannot download models", model);
}

std::string config_directory(const std::string& model) { return model_directory(model); }

#endif

}  // namespace tensorfold::cli
