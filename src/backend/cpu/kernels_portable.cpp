#include "backend/cpu/lanes_portable.h"
#include "backend/cpu/level_kernels.h"

namespace tensorfold::backend::cpu {

const KernelTable& portable_kernels() {
  static const KernelTable table = make_kernel_table<PortableLanes>("portable");
  return table;
}

}  // namespace tensorfold::backend::cpu
