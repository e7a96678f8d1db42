#pragma once

#include <string>

namespace tensorfold::server {

/// A new id: the prefix and 24 hexadecimal digits that no one can guess.
std::string new_id(const std::string& prefix);

}  // namespace tensorfold::server
