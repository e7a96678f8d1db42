// What `tensorfold update` does, apart from where releases come from.
#pragma once

#include <filesystem>
#include <string>

namespace tensorfold::cli {

/// Where releases come from and what they replace.
struct UpdateSource {
  std::string list_url;
  std::string key;      ///< public Ed25519 key, base64
  std::string version;  ///< of the program that runs
  std::filesystem::path executable;
};

/// Reports on or installs the newest release; returns the exit code. `force`: also when it is not newer. Throws Error.
int update_program(const UpdateSource& source, bool check_only, bool force);

}  // namespace tensorfold::cli
