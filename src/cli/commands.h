// The commands of the program, one function and one file each.
#pragma once

#include <vector>

#include "cli/command.h"

namespace tensorfold::cli {

/// Every command, in the order of the help. A new command is one file, one declaration here and one line in the list.
std::vector<Command> all_commands();

}  // namespace tensorfold::cli
