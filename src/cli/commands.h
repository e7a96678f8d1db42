// The commands of the program, one function and one file each.
#pragma once

#include <vector>

#include "cli/command.h"

namespace tensorfold::cli {

/// Every command, in the order of the help. A new command is one file, one declaration here and one line in the list.
std::vector<Command> all_commands();

Command serve_command();
Command generate_command();
Command info_command();
Command models_command();

// Only in a build with the hub.
Command pull_command();
Command remove_command();
Command update_command();

Command plan_command();
Command convert_command();
Command client_bench_command();
Command service_command();
Command completions_command();
Command manual_command();
Command bench_command();

Command schedule_fuzz_command();
Command verify_exact_command();

}  // namespace tensorfold::cli
