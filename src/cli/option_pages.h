// What is generated from the option table besides --help: a manual page, shell completions, a page of Markdown.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace tensorfold::cli {

/// `text` broken at blanks into lines of at most 80 columns that begin with `indent` blanks; the first begins with
/// `lead`.
std::string wrapped(const std::string& lead, const std::string& text, size_t indent);

/// What `tensorfold COMMAND --help` prints; no line longer than 80 columns.
std::string help_page(const Command& command);

/// A manual page in section 1, as troff source.
std::string manual_page(const std::vector<Command>& commands, const std::string& version);

/// Every command and option as Markdown, for the documentation.
std::string markdown_page(const std::vector<Command>& commands);

/// A completion script for `shell`: bash, zsh or fish. Throws Error(invalid_request) for another.
std::string completions(const std::vector<Command>& commands, const std::string& shell);

}  // namespace tensorfold::cli
