#include "cli/commands.h"

namespace tensorfold::cli {

std::vector<Command> all_commands() { return {}; }

}  // namespace tensorfold::cli
