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

int service(const ServiceArguments& given) {
  std::error_code error;
  ServiceUnit unit;
  unit.program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) fail(ErrorKind::io, "cannot find this program's own file: {}", error.message());
  unit.model = given.model;
  unit.arguments = given.arguments;
  unit.account = given.account;
  unit.system = given.scope == "system";
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
      "For yourself: write it to ~/.config/systemd/user/tensorfold.service and run `systemctl --user enable --now "
      "tensorfold`. For the machine: write it to /etc/systemd/system/tensorfold.service, create the account, and run "
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
