// The text of a systemd unit.
#pragma once

#include <string>

namespace tensorfold::cli {

struct ServiceUnit {
  std::string program;    ///< absolute path of the executable
  std::string model;      ///< MODEL of serve
  std::string arguments;  ///< further options of serve, blanks between them; may be empty
  std::string account;    ///< of a system unit
  bool system = false;    ///< a system unit instead of a user's
};

/// A unit file: restarts after failures, stops in the order serve needs, and may touch little beside its state folder.
/// Throws Error(invalid_request) for a value that a unit line cannot hold (a line break, a quote).
std::string unit_text(const ServiceUnit& unit);

/// Whether the hardening of a system unit hides `path` from the service: homes and temporary folders.
bool is_hidden_from_services(const std::string& path);

}  // namespace tensorfold::cli
