#include <csignal>
#include <string>
#include <vector>

#include "cli/commands.h"

int main(int argc, char** argv) {
  // A vanished reader shows as a failed write, never as the end of the program.
  std::signal(SIGPIPE, SIG_IGN);
  return tensorfold::cli::run_program(tensorfold::cli::all_commands(), std::vector<std::string>(argv + 1, argv + argc));
}
