#include "cli/model_directory.h"

#include <filesystem>
#include <system_error>

#include "base/error.h"
#ifdef TENSORFOLD_HAS_HUB
#include "cli/hub_access.h"
#endif

namespace tensorfold::cli {
namespace {

bool is_folder(const std::string& model) {
  std::error_code ignored;
  return std::filesystem::is_directory(model, ignored);
}

}  // namespace

#ifdef TENSORFOLD_HAS_HUB

std::string model_directory(const std::string& model) {
  if (is_folder(model)) return model;
  const InterruptFlag interrupt;
  const HubAccess access(interrupt.flag());
  const auto progress = hub::progress_for(stdout, "[tensorfold] ");
  return hub::resolve_model(access.client, access.cache, model, {}, *progress, servable_check(*progress)).string();
}

std::string config_directory(const std::string& model) {
  const auto repo = is_folder(model) ? std::nullopt : hub::parse_repo(model);
  if (!repo) return model_directory(model);  // a folder, or the words for what is neither
  const InterruptFlag interrupt;
  const HubAccess access(interrupt.flag());
  hub::SilentProgress silent;
  return hub::fetch_config(access.client, access.cache, *repo, silent).string();
}

#else

std::string model_directory(const std::string& model) {
  if (is_folder(model)) return model;
  fail(ErrorKind::not_found, "'{}' is not a folder, and this build cannot download models", model);
}

std::string config_directory(const std::string& model) { return model_directory(model); }

#endif

}  // namespace tensorfold::cli
