#pragma once

#include <string_view>

namespace tensorfold::cli {

/// The program's version, "X.Y.Z", from the build.
std::string_view version();

}  // namespace tensorfold::cli
