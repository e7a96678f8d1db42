#include "cli/option_pages.h"

#include <algorithm>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace tensorfold::cli {
namespace {

bool takes_value(const Option& option) { return !option.value.empty(); }

bool is_repeatable(const Option& option) { return std::holds_alternative<std::vector<std::string>*>(option.target); }

std::string default_of(const Option& option) {
  return std::visit(
      [](const auto* value) -> std::string {
        using Value = std::remove_cv_t<std::remove_pointer_t<decltype(value)>>;
        if constexpr (std::is_same_v<Value, std::string>) return *value;
        if constexpr (std::is_same_v<Value, int32_t> || std::is_same_v<Value, uint64_t> ||
                      std::is_same_v<Value, double>)
          return fmt::format("{}", *value);
        return {};
      },
      option.target);
}

/// The help sentence with its choices, its default and whether it may be repeated.
std::string sentence(const Option& option) {
  std::string text = option.help;
  if (!option.choices.empty()) text += fmt::format(" ({})", fmt::join(option.choices, ", "));
  if (is_repeatable(option)) text += "; may be given more than once";
  if (const std::string value = default_of(option); !value.empty()) text += fmt::format("; default {}", value);
  return text + ".";
}

bool is_many(const Positional& positional) {
  return std::holds_alternative<std::vector<std::string>*>(positional.target);
}

std::string usage(const Command& command) {
  std::string text = "tensorfold " + command.name;
  for (const Positional& positional : command.positionals) {
    const std::string name = positional.name + (is_many(positional) ? " ..." : "");
    text += positional.required ? " " + name : " [" + name + "]";
  }
  return command.options.empty() ? text : text + " [OPTIONS]";
}

/// Options under their headings, in the order of their first appearance.
std::vector<std::pair<std::string, std::vector<const Option*>>> grouped(const Command& command) {
  std::vector<std::pair<std::string, std::vector<const Option*>>> groups;
  for (const Option& option : command.options) {
    auto found = groups.begin();
    while (found != groups.end() && found->first != option.group) ++found;
    if (found == groups.end()) found = groups.insert(found, {option.group, {}});
    found->second.push_back(&option);
  }
  return groups;
}

/// `text` broken at blanks into lines of at most 80 columns that begin with `indent` blanks; the first begins with
/// `lead`.
std::string wrapped(const std::string& lead, const std::string& text, size_t indent) {
  constexpr size_t kColumns = 80;
  std::string out = lead;
  size_t column = lead.size();
  if (column + 1 > indent && indent > 0) {
    out += "\n";
    column = 0;
  }
  bool line_begins = true;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const size_t length = end - at;
    if (!line_begins && column + 1 + length > kColumns) {
      out += "\n";
      column = 0;
      line_begins = true;
    }
    const size_t blanks = line_begins ? (indent > column ? indent - column : 0) : 1;
    out += std::string(blanks, ' ') + text.substr(at, length);
    column += blanks + length;
    line_begins = false;
    at = end + 1;
  }
  return out + "\n";
}

/// Text as troff shows it: dashes are dashes, and no line starts a request.
std::string troff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (out.empty() || out.back() == '\n')
      if (c == '.' || c == '\'') out += "\\&";
    if (c == '-')
      out += "\\-";
    else if (c == '\\')
      out += "\\e";
    else
      out += c;
  }
  return out;
}

void add_manual_command(std::string& page, const Command& command) {
  page += fmt::format(".SS {}\n{}.\n.PP\n.B {}\n", troff(command.name), troff(command.summary), troff(usage(command)));
  if (!command.description.empty()) page += fmt::format(".PP\n{}\n", troff(command.description));
  for (const Positional& positional : command.positionals)
    page += fmt::format(".TP\n.I {}\n{}.\n", troff(positional.name), troff(positional.help));
  for (const auto& [group, options] : grouped(command)) {
    if (!group.empty()) page += fmt::format(".PP\n.I {}\n", troff(group));
    for (const Option* option : options) {
      page += fmt::format(".TP\n.B {}", troff(option->name));
      if (takes_value(*option)) page += " \\fI" + troff(option->value) + "\\fR";
      page += "\n" + troff(sentence(*option)) + "\n";
    }
  }
}

/// Text inside single quotes of a shell.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) c == '\'' ? out += "'\\''" : out += c;
  return out + "'";
}

std::vector<std::string> option_names(const Command& command) {
  std::vector<std::string> names = {"--help"};
  for (const Option& option : command.options) names.push_back(option.name);
  return names;
}

std::string bash_completions(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  std::string text = "# bash completion for tensorfold; generated by `tensorfold completions bash`\n_tensorfold() {\n";
  text += "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=\n";
  text += fmt::format("  if ((COMP_CWORD == 1)); then\n    words='{} --help --version'\n", fmt::join(names, " "));
  text += "  else\n    case ${COMP_WORDS[1]}:$before in\n";
  for (const Command& command : commands)
    for (const Option& option : command.options)
      if (!option.choices.empty())
        text += fmt::format("      {}:{}) words='{}' ;;\n", command.name, option.name, fmt::join(option.choices, " "));
  for (const Command& command : commands)
    text += fmt::format("      {}:*) words='{}' ;;\n", command.name, fmt::join(option_names(command), " "));
  text += "    esac\n  fi\n";
  text += "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n";
  text += "  if [[ $word != -* ]]; then mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -d -- \"$word\"); fi\n";
  return text + "}\ncomplete -o filenames -F _tensorfold tensorfold\n";
}

/// A name and its description as zsh's _describe and _arguments take them.
std::string zsh_pair(const std::string& name, std::string description) {
  std::string out;
  for (const char c : description) {
    if (c == ':' || c == '[' || c == ']') out += '\\';
    out += c;
  }
  return shell_quoted(name + "[" + out + "]");
}

std::string zsh_completions(const std::vector<Command>& commands) {
  std::string text =
      "#compdef tensorfold\n# generated by `tensorfold completions zsh`\n_tensorfold() {\n  local -a commands=(\n";
  for (const Command& command : commands)
    text += fmt::format("    {}\n", shell_quoted(command.name + ":" + command.summary));
  text += "  )\n  if ((CURRENT == 2)); then\n    _describe command commands\n    _directories\n    return\n  fi\n";
  text += "  local name=$words[2]\n  shift words\n  ((CURRENT--))\n  case $name in\n";
  for (const Command& command : commands) {
    text += fmt::format("    {}) _arguments", command.name);
    for (const Option& option : command.options) {
      std::string spec = zsh_pair(option.name, option.help);
      if (takes_value(option)) {
        const std::string values = option.choices.empty() ? "" : fmt::format("({})", fmt::join(option.choices, " "));
        spec += shell_quoted(":" + option.value + ":" + values);
      }
      text += " \\\n      " + (is_repeatable(option) ? "'*'" + spec : spec);
    }
    text += " \\\n      '*:model:_directories' ;;\n";
  }
  return text + "  esac\n}\n_tensorfold \"$@\"\n";
}

std::string fish_completions(const std::vector<Command>& commands) {
  std::string text = "# fish completion for tensorfold; generated by `tensorfold completions fish`\n";
  for (const Command& command : commands) {
    text += fmt::format("complete -c tensorfold -n __fish_use_subcommand -a {} -d {}\n", command.name,
                        shell_quoted(command.summary));
    for (const Option& option : command.options) {
      text += fmt::format("complete -c tensorfold -n '__fish_seen_subcommand_from {}' -l {} -d {}", command.name,
                          option.name.substr(2), shell_quoted(option.help));
      if (takes_value(option)) text += " -x";
      if (!option.choices.empty()) text += fmt::format(" -a '{}'", fmt::join(option.choices, " "));
      text += "\n";
    }
  }
  return text;
}

}  // namespace

std::string help_page(const Command& command) {
  constexpr size_t kIndent = 26;
  std::string page = "Usage: " + usage(command) + "\n\n" + command.summary + ".\n";
  if (!command.description.empty()) page += "\n" + wrapped("", command.description, 0);
  if (!command.positionals.empty()) page += "\n";
  for (const Positional& positional : command.positionals)
    page += wrapped("  " + positional.name, positional.help + ".", kIndent);
  for (const auto& [group, options] : grouped(command)) {
    page += "\n" + (group.empty() ? "Options" : group) + ":\n";
    for (const Option* option : options)
      page +=
          wrapped("  " + option->name + (takes_value(*option) ? " " + option->value : ""), sentence(*option), kIndent);
  }
  return page;
}

std::string manual_page(const std::vector<Command>& commands, const std::string& version) {
  std::string page = fmt::format(".TH TENSORFOLD 1 \"\" \"tensorfold {}\" \"User Commands\"\n", troff(version));
  page += ".SH NAME\ntensorfold \\- an exact, fast server for local language models\n";
  page +=
      ".SH SYNOPSIS\n.B tensorfold\n.I COMMAND\n[\\fIOPTIONS\\fR]\n.br\n.B tensorfold\n.I MODEL\n[\\fIOPTIONS\\fR]\n";
  page += ".SH DESCRIPTION\nThe second form is\n.B tensorfold serve\n.IR MODEL .\n";
  page +=
      "A model is a directory or the name of a repository on the Hugging Face hub, owner/name or "
      "owner/name@revision.\n";
  page += ".SH COMMANDS\n";
  for (const Command& command : commands) add_manual_command(page, command);
  page += ".SH EXIT STATUS\n0 on success, 1 when something went wrong, 2 for a wrong command line.\n";
  return page;
}

std::string markdown_page(const std::vector<Command>& commands) {
  std::string page =
      "# Commands\n\nGenerated by `tensorfold manual --markdown` from the table that parses the command line.\n";
  for (const Command& command : commands) {
    page += fmt::format("\n## {}\n\n{}.\n\n    {}\n", command.name, command.summary, usage(command));
    if (!command.description.empty()) page += "\n" + command.description + "\n";
    for (const auto& [group, options] : grouped(command)) {
      if (!group.empty()) page += fmt::format("\n{}\n", group);
      page += "\n";
      for (const Option* option : options)
        page += fmt::format("- `{}{}` {}\n", option->name, takes_value(*option) ? " " + option->value : "",
                            sentence(*option));
    }
  }
  return page;
}

std::string completions(const std::vector<Command>& commands, const std::string& shell) {
  if (shell == "bash") return bash_completions(commands);
  if (shell == "zsh") return zsh_completions(commands);
  if (shell == "fish") return fish_completions(commands);
  fail(ErrorKind::invalid_request, "no completions for '{}': bash, zsh and fish have them", shell);
}

}  // namespace tensorfold::cli
