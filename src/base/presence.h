// Whether an optional file is there. A link whose file is gone is not an absent file.
#pragma once

#include <filesystem>

namespace tensorfold {

/// Whether there is something of this name to read. Throws Error(not_found) for a link that points to a missing file (a
/// cache whose blob is gone), Error(io) where the system does not say.
bool has_file(const std::filesystem::path& path);

}  // namespace tensorfold
