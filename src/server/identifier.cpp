#include "server/identifier.h"

#include <random>

#include <fmt/format.h>

namespace tensorfold::server {

std::string new_id(const std::string& prefix) {
  thread_local std::random_device device;
  std::string id = prefix;
  for (int i = 0; i < 3; ++i) id += fmt::format("{:08x}", device());
  return id;
}

}  // namespace tensorfold::server
