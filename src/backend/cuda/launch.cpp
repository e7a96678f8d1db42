#include "backend/cuda/launch.h"

#include <mutex>
#include <set>

namespace tensorfold::backend::cuda {

void prefer_shared_memory(const void* kernel) {
  static std::mutex mutex;
  static std::set<const void*> known;
  const std::scoped_lock lock(mutex);
  if (!known.insert(kernel).second) return;
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      "set a kernel's shared memory");
}

}  // namespace tensorfold::backend::cuda
