// The one line about a command line that cannot be read: what is wrong, and what was probably meant.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"

namespace tensorfold::cli {

/// The word of `candidates` that a slip of the keys turns into `word`, if there is one near enough.
std::optional<std::string> nearest_word(std::string_view word, const std::vector<std::string>& candidates);

/// About a first word that is no command and no model.
std::string unknown_command_message(const std::string& word, const std::vector<Command>& commands);

/// About words that `command` does not take; `word` is the first of them.
std::string unexpected_word_message(const std::string& word, const Command& command);

/// About a positional or an option's value that `command` needs.
std::string missing_message(const std::string& name, const Command& command);

}  // namespace tensorfold::cli
