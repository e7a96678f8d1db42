#include "cli/version.h"

namespace tensorfold::cli {

std::string_view version() { return TENSORFOLD_VERSION; }

}  // namespace tensorfold::cli
