// tensorfold update
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/hub_access.h"
#include "cli/version.h"

namespace tensorfold::cli {
namespace {

struct UpdateArguments {
  bool check_only = false;
  bool force = false;
};

int update(const UpdateArguments& arguments) {
  const std::string url = release_list_url();
  const std::string current(version());
  if (url.empty())
    fail(ErrorKind::unsupported,
         "this build names no release list (TENSORFOLD_RELEASES may): update its source and build again");
  const InterruptFlag interrupt;
  hub::HttpOptions http;
  http.cancel = interrupt.flag();
  http.connect_timeout = std::chrono::seconds(10);
  const hub::Release release = hub::fetch_release(url, hub::platform_name(), http);
  const bool newer = hub::is_newer_version(release.version, current);
  if (!newer && !arguments.force) {
    fmt::print("[tensorfold] {} is the newest version\n", current);
    return 0;
  }
  if (arguments.check_only) {
    fmt::print("[tensorfold] version {} is out (this is {}): `tensorfold update` installs it\n", release.version,
               current);
    return 0;
  }
  hub::check_signature(release, release_key());
  const std::filesystem::path prefix = hub::installed_prefix(std::filesystem::read_symlink("/proc/self/exe"));
  hub::install_release(release, prefix, http);
  fmt::print("[tensorfold] updated {} -> {} in {}\n", current, release.version, prefix.string());
  if (!release.notes.empty()) fmt::print("[tensorfold] {}\n", release.notes);
  return 0;
}

}  // namespace

Command update_command() {
  const auto arguments = std::make_shared<UpdateArguments>();
  Command command;
  command.name = "update";
  command.summary = "Install the newest release";
  command.description =
      "Fetches this platform's package, checks its size, SHA-256 and signature, tries it, and puts it in this "
      "program's "
      "place. Models and settings are not touched. A program built from source is not replaced.";
  command.options.push_back(
      {"--check", "", "only say whether there is a newer release", "", &arguments->check_only, {}});
  command.options.push_back({"--force", "", "install also when it is not newer", "", &arguments->force, {}});
  command.run = [arguments] { return update(*arguments); };
  return command;
}

}  // namespace tensorfold::cli
