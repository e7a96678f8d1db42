#include "backend/cpu/kernels.h"

#if defined(__aarch64__)

#include "backend/cpu/lanes_neon.h"
#include "backend/cpu/level_kernels.h"

namespace tensorfold::backend::cpu {

const KernelTable& neon_kernels() {
  static const KernelTable table = make_kernel_table<NeonLanes>("neon");
  return table;
}

}  // namespace tensorfold::backend::cpu

#endif
