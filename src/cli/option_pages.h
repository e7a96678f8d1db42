// What is generated from the option table besides --help: a manual page, shell completions, a page of Markdown.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace tensorfold::cli {

/// `text` broken at blanks into lines of at most 80 columns that begin with `indent` blanks; the first begins with
/// `lead`.
std::string wrapped(const std::string& lead, const std::string& text, size_t indent);

/// A variable of the environment that the program obeys.
struct EnvironmentVariable {
  std::string name;
  std::string help;  ///< one sentence, no full stop at the end
};
const std::vector<EnvironmentVariable>& environment_variables();

/// What `tensorfold --help` prints.
std::string overview_page(const std::vector<Command>& commands);

/// What `tensorfold COMMAND --help` prints; no line longer than 80 columns.
std::string help_page(const Command& command);

/// A manual page in section 1, as troff source.
std::string manual_page(const std::vector<Command>& commands, const std::string& version);

/// Every help page and variable of the environment as Markdown, for the documentation.
std::string markdown_page(const std::vector<Command>& commands);

/// A completion script for `shell`: bash, zsh or fish. Throws Error(invalid_request) for another.
std::string completions(const std::vector<Command>& commands, const std::string& shell);

}  // namespace tensorfold::cli
