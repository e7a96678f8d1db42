#include "shared_data.h"

namespace tensorfold::testing {

std::filesystem::path source_directory() { return TENSORFOLD_SOURCE_DIR; }

}  // namespace tensorfold::testing
