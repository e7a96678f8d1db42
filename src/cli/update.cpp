// tensorfold update
#include "cli/update.h"

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

}  // namespace

int update_program(const UpdateSource& source, bool check_only, bool force) {
  const InterruptFlag interrupt;
  hub::HttpOptions http;
  http.cancel = interrupt.flag();
  http.connect_timeout = std::chrono::seconds(10);
  const hub::Release release = hub::fetch_release(source.list_url, hub::platform_name(), http);
  const bool newer = hub::is_newer_version(release.version, source.version);
  if (!newer && !force) {
    fmt::print("[tensorfold] {} is the newest version\n", source.version);
    return 0;
  }
  if (check_only) {
    fmt::print("[tensorfold] version {} is out (this is {}): `tensorfold update` installs it\n", release.version,
               source.version);
    return 0;
  }
  hub::check_signature(release, source.key);
  const std::filesystem::path prefix = hub::installed_prefix(source.executable);
  hub::install_release(release, prefix, http);
  fmt::print("[tensorfold] updated {} -> {} in {}\n", source.version, release.version, prefix.string());
  if (!release.notes.empty()) fmt::print("[tensorfold] {}\n", release.notes);
  return 0;
}

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
  command.run = [arguments] {
    if (release_list_url().empty())
      fail(ErrorKind::unsupported,
           "this build names no release list (TENSORFOLD_RELEASES may): update its source and build again");
    return update_program(
        {release_list_url(), release_key(), std::string(version()), std::filesystem::read_symlink("/proc/self/exe")},
        arguments->check_only, arguments->force);
  };
  return command;
}

}  // namespace tensorfold::cli
