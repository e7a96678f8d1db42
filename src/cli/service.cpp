// tensorfold service MODEL: unit files for systemd
#include <filesystem>
#include <memory>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/service_unit.h"

namespace tensorfold::cli {
namespace {

struct ServiceArguments {
  std::string model;
  std::string scope = "user";
  std::string arguments;
  std::string account = "tensorfold";
};

/// A service starts in another folder than this one: a model's directory has to be named from the root.
void check_model(const std::string& model) {
  const std::filesystem::path path(model);
  std::error_code ignored;
  if (path.is_absolute() || !(std::filesystem::is_directory(path, ignored) || model.starts_with('.'))) return;
  fail(ErrorKind::invalid_request, "a service needs an absolute directory: {}",
       std::filesystem::absolute(path).lexically_normal().string());
}

void warn_of_hidden(const char* what, const std::string& path) {
  if (is_hidden_from_services(path))
    fmt::print(stderr,
               "[tensorfold] warning: the {} {} is hidden from this unit (ProtectHome, PrivateTmp): put it elsewhere, "
               "as in /opt\n",
               what, path);
}

int service(const ServiceArguments& given) {
  std::error_code error;
  check_model(given.model);
  ServiceUnit unit;
  unit.program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) fail(ErrorKind::io, "cannot find this program's own file: {}", error.message());
  unit.model = given.model;
  unit.arguments = given.arguments;
  unit.account = given.account;
  unit.system = given.scope == "system";
  if (unit.system) {
    warn_of_hidden("program", unit.program);
    warn_of_hidden("model", unit.model);
  }
  fmt::print("{}", unit_text(unit));
  return 0;
}

}  // namespace

Command service_command() {
  const auto given = std::make_shared<ServiceArguments>();
  Command command;
  command.name = "service";
  command.summary = "Print a systemd unit that serves a model";
  command.description =
      "For yourself: `mkdir -p ~/.config/systemd/user`, write it to ~/.config/systemd/user/tensorfold.service, and run "
      "`systemctl --user enable --now tensorfold`; `loginctl enable-linger` keeps it running when you are logged out. "
      "For the machine: write it to /etc/systemd/system/tensorfold.service, create the account, and run "
      "`systemctl enable --now tensorfold`. Settings such as HF_HOME or keys go into the environment file it names.";
  command.positionals.push_back({"MODEL", "owner/name or an absolute directory", &given->model});
  command.options.push_back({"--scope", "S", "whose unit", "", &given->scope, {"user", "system"}});
  command.options.push_back({"--account", "NAME", "the account a system unit runs as", "", &given->account, {}});
  command.options.push_back(
      {"--serve-options", "TEXT", "further options of serve, one quoted text", "", &given->arguments, {}});
  command.run = [given] { return service(*given); };
  return command;
}

}  // namespace tensorfold::cli
