#include "cli/commands.h"

namespace tensorfold::cli {

std::vector<Command> all_commands() {
  std::vector<Command> commands;
  for (auto* command : {serve_command, generate_command, info_command, models_command}) commands.push_back(command());
#ifdef TENSORFOLD_HAS_HUB
  for (auto* hub_command : {pull_command, remove_command, update_command}) commands.push_back(hub_command());
#endif
  for (auto* command : {convert_command, bench_command, plan_command, client_bench_command, schedule_fuzz_command, verify_exact_command,
                        service_command, completions_command, manual_command}) {
    commands.push_back(command());
  }
  return commands;
}

}  // namespace tensorfold::cli
