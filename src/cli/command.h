// What a command is: a name, what it takes, and what it does. The option table is the only place an option is
// described; parsing, --help and the manual page are made from it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tensorfold::cli {

/// Where a parsed value goes. bool is a switch without a value; vectors take repeated options.
using Target = std::variant<bool*, int32_t*, uint64_t*, double*, std::string*, std::optional<bool>*,
                            std::optional<int32_t>*, std::optional<uint64_t>*, std::optional<double>*,
                            std::optional<std::string>*, std::vector<std::string>*>;

/// One option of a command.
struct Option {
  std::string name;                  ///< "--port"; for a switch with an opposite: "--thinking" beside "--no-thinking"
  std::string value;                 ///< placeholder in the help ("N"); empty for a switch
  std::string help;                  ///< one sentence, no full stop at the end
  std::string group;                 ///< heading in the help
  Target target;                     ///< where the value goes; what stands there before parsing is the default
  std::vector<std::string> choices;  ///< accepted values; empty: any
  bool inverted = false;             ///< a switch that stores false
};

/// A word without dashes. Vectors take all that remain.
struct Positional {
  std::string name;  ///< "MODEL"
  std::string help;
  std::variant<std::string*, std::vector<std::string>*> target;
  bool required = true;
};

/// A command as the program's list holds it. The closures own the state that the targets point into.
struct Command {
  std::string name;
  std::string summary;      ///< one line for the list of commands
  std::string description;  ///< paragraphs below the usage line in its own help; may be empty
  std::vector<Positional> positionals;
  std::vector<Option> options;
  std::function<int()> run;  ///< returns the exit code; throws Error
};

/// Parses the arguments, runs one of the commands and maps failures to one line on standard error: exit code 1 for what
/// went wrong, 2 for bad usage.
int run_program(const std::vector<Command>& commands, std::vector<std::string> arguments);

}  // namespace tensorfold::cli
