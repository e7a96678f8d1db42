#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <type_traits>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/console.h"
#include "base/error.h"
#include "cli/command.h"
#include "cli/option_pages.h"
#include "cli/usage_message.h"
#include "cli/version.h"

namespace tensorfold::cli {
namespace {

/// Text of the value that stands in a target before parsing, for the help; empty when there is none worth showing.
std::string default_text(const Target& target) {
  return std::visit(
      [](auto* value) -> std::string {
        using Value = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          return *value;
        } else if constexpr (std::is_same_v<Value, int32_t> || std::is_same_v<Value, uint64_t> ||
                             std::is_same_v<Value, double>) {
          return fmt::format("{}", *value);
        } else {
          return {};
        }
      },
      target);
}

std::string help_text(const Option& option) {
  std::string text = option.help;
  if (!option.choices.empty()) text += fmt::format(" ({})", fmt::join(option.choices, ", "));
  if (const std::string value = default_text(option.target); !value.empty()) text += fmt::format(" [{}]", value);
  return text;
}

bool is_switch(const Target& target) {
  return std::holds_alternative<bool*>(target) || std::holds_alternative<std::optional<bool>*>(target);
}

bool is_number(const Target& target) {
  return !is_switch(target) && !std::holds_alternative<std::string*>(target) &&
         !std::holds_alternative<std::optional<std::string>*>(target) &&
         !std::holds_alternative<std::vector<std::string>*>(target);
}

std::string refuse_empty(const std::string& text) { return text.empty() ? "a number is needed, not nothing" : ""; }

void add_option(CLI::App& app, const Option& option) {
  CLI::Option* added = nullptr;
  if (is_switch(option.target)) {
    const bool stored = !option.inverted;
    added = app.add_flag_callback(
        option.name,
        [target = option.target, stored] {
          if (const auto* plain = std::get_if<bool*>(&target)) **plain = stored;
          if (const auto* optional = std::get_if<std::optional<bool>*>(&target)) **optional = stored;
        },
        help_text(option));
  } else {
    added = std::visit(
        [&](auto* value) -> CLI::Option* {
          if constexpr (std::is_same_v<decltype(value), bool*> ||
                        std::is_same_v<decltype(value), std::optional<bool>*>) {
            return nullptr;
          } else {
            return app.add_option(option.name, *value, help_text(option));
          }
        },
        option.target);
    added->type_name(option.value);
    if (std::holds_alternative<std::vector<std::string>*>(option.target)) added->expected(1)->take_all();
    if (!option.choices.empty()) added->check(CLI::IsMember(option.choices));
    if (is_number(option.target)) added->check(refuse_empty);  // CLI11 takes nothing for 0
  }
  if (!option.group.empty()) added->group(option.group);
}

void add_positional(CLI::App& app, const Positional& positional) {
  CLI::Option* added = std::visit([&](auto* value) { return app.add_option(positional.name, *value, positional.help); },
                                  positional.target);
  added->type_name("");
  if (positional.required) added->required();
}

void add_command(CLI::App& program, const Command& command) {
  const std::string description =
      command.description.empty() ? command.summary + "." : command.summary + ".\n\n" + command.description;
  CLI::App* app = program.add_subcommand(command.name, description);
  app->fallthrough(false);
  app->positionals_at_end(false);
  for (const Positional& positional : command.positionals) add_positional(*app, positional);
  for (const Option& option : command.options) add_option(*app, option);
  // A switch and its opposite.
  for (const Option& one : command.options) {
    for (const Option& other : command.options) {
      if (&one < &other && is_switch(one.target) && one.target == other.target)
        app->get_option(one.name)->excludes(app->get_option(other.name));
    }
  }
}

const Command* command_named(const std::string& name, const std::vector<Command>& commands) {
  const auto found =
      std::find_if(commands.begin(), commands.end(), [&](const Command& one) { return one.name == name; });
  return found == commands.end() ? nullptr : &*found;
}

/// `tensorfold MODEL …` is `tensorfold serve MODEL …` when the word is a path or looks like owner/name.
bool means_serve(const std::string& word) {
  if (word.empty() || word.front() == '-') return false;
  std::error_code ignored;
  return std::filesystem::exists(word, ignored) || word.find('/') != std::string::npos;
}

/// The line about a command line that CLI11 refuses; its own words where they are as good.
std::string usage_message(const CLI::ParseError& wrong, const CLI::App& program, const Command& command) {
  const std::string words = wrong.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&wrong) != nullptr) {
    const std::vector<std::string> unexpected = program.remaining(true);
    const auto option = std::find_if(unexpected.begin(), unexpected.end(),
                                     [](const std::string& word) { return word.starts_with('-'); });
    if (option != unexpected.end()) return unexpected_word_message(*option, command);
    if (!unexpected.empty()) return unexpected_word_message(unexpected.front(), command);
  }
  if (dynamic_cast<const CLI::RequiredError*>(&wrong) != nullptr)
    return missing_message(words.substr(0, words.find(' ')), command);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&wrong) != nullptr) {
    const std::string name = words.substr(0, words.find(':'));
    const CLI::Option* option = program.get_subcommand(command.name)->get_option_no_throw(name);
    if (option != nullptr && option->count() > 1)
      return fmt::format("{} is given {} times, but takes one value", name, option->count());
    return missing_message(name, command);
  }
  return words;
}

int report(std::string message) {
  std::fflush(stdout);
  std::replace(message.begin(), message.end(), '\n', ' ');
  say_line(stderr, "tensorfold: " + (message.empty() ? std::string("it failed and did not say why") : message));
  return 1;
}

/// A failure as the user reads it. What to do about a damaged file is the same for every command that reads one and
/// stands here.
std::string line_of(const Error& failure, const Command& command) {
  std::string line = failure.what();
  const bool fetches = command.name == "pull" || command.name == "update";
  if (failure.kind() == ErrorKind::corrupt_file && !fetches)
    line += "; a file of the hub that is damaged or cut short is fetched again by `tensorfold pull owner/name`";
  return line;
}

int run_command(const Command& command) {
  try {
    return command.run();
  } catch (const std::bad_alloc&) {
    return report("out of memory");
  } catch (const Error& failure) {
    return report(line_of(failure, command));
  } catch (const std::exception& failure) {
    return report(failure.what());
  }
}

int dispatch(const std::vector<Command>& commands, std::vector<std::string> arguments) {
  if (arguments.size() == 1 && arguments[0] == "--version") {
    fmt::print("tensorfold {}\n", version());
    return 0;
  }
  if (arguments.size() == 1 && (arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help")) {
    fmt::print("{}", overview_page(commands));
    return 0;
  }
  if (arguments.empty()) {
    std::fputs(overview_page(commands).c_str(), stderr);
    return 2;
  }
  if (arguments.size() == 2 && arguments[0] == "help") arguments = {arguments[1], "--help"};
  if (command_named(arguments[0], commands) == nullptr) {
    if (!means_serve(arguments[0])) return report(unknown_command_message(arguments[0], commands)), 2;
    arguments.insert(arguments.begin(), "serve");
  }
  const std::string name = arguments[0];
  const Command* command = command_named(name, commands);
  if (command == nullptr) return report(unknown_command_message(name, commands)), 2;

  CLI::App program("An exact, fast server for local language models", "tensorfold");
  program.require_subcommand(1);
  add_command(program, *command);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes its arguments from the back
  try {
    program.parse(arguments);
  } catch (const CLI::Success&) {
    fmt::print("{}", help_page(*command));
    return 0;
  } catch (const CLI::ParseError& wrong) {
    return report(usage_message(wrong, program, *command)), 2;
  }
  return run_command(*command);
}

}  // namespace

int run_program(const std::vector<Command>& commands, std::vector<std::string> arguments) {
  int code = 0;
  try {
    code = dispatch(commands, std::move(arguments));
  } catch (const std::exception& failure) {
    return report(failure.what());  // a page that could not be printed
  }
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  if (code != 0) return code;  // something was said already
  return report(fmt::format("cannot write to standard output{}{}", errno == 0 ? "" : ": ",
                            errno == 0 ? "" : std::strerror(errno)));
}

}  // namespace tensorfold::cli
