// How much memory this process may hope for.
#pragma once

#include <cstdint>

namespace tensorfold {

/// Bytes of the machine's memory, or the limit of the process's control group (a container's) where that is less.
uint64_t physical_memory();

}  // namespace tensorfold
