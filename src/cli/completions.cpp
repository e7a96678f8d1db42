// tensorfold completions SHELL, tensorfold manual
#include <memory>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/option_pages.h"
#include "cli/version.h"

namespace tensorfold::cli {

Command completions_command() {
  const auto shell = std::make_shared<std::string>();
  Command command;
  command.name = "completions";
  command.summary = "Print a completion script for a shell";
  command.description =
      "bash: source it, or write it to ~/.local/share/bash-completion/completions/tensorfold. zsh: write it to a "
      "folder of "
      "$fpath as _tensorfold. fish: write it to ~/.config/fish/completions/tensorfold.fish.";
  command.positionals.push_back({"SHELL", "bash, zsh or fish", shell.get()});
  command.run = [shell] { return fmt::print("{}", completions(all_commands(), *shell)), 0; };
  return command;
}

Command manual_command() {
  const auto markdown = std::make_shared<bool>(false);
  Command command;
  command.name = "manual";
  command.summary = "Print the manual page (tensorfold manual | man -l -)";
  command.options.push_back({"--markdown", "", "as Markdown, for the documentation", "", markdown.get(), {}});
  command.run = [markdown] {
    const std::vector<Command> commands = all_commands();
    fmt::print("{}", *markdown ? markdown_page(commands) : manual_page(commands, std::string(version())));
    return 0;
  };
  return command;
}

}  // namespace tensorfold::cli
