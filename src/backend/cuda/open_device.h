// Which GPU, and whether it will do: one clear line where it will not.
#pragma once

#include <cstdint>
#include <string>

#include <cuda_runtime.h>

namespace tensorfold::backend::cuda {

struct Device {
  std::string name;
  uint64_t free_bytes = 0;  ///< memory that nothing uses, when it was opened
  int32_t processors = 0;
  size_t shared_bytes = 0;  ///< of one thread block, at most
  bool cooperative = false;
};

/// Makes GPU `index` current. Throws Error(unsupported) where there is no driver, a driver older than this build needs,
/// no GPU, or one that this build has no code for, and Error(invalid_request) for an index that is not there.
Device open_device(int index);

/// Why no GPU can be used: `status` of counting them, with the CUDA versions (1000 major + 10 minor) of the driver
/// (0: there is none) and of this build.
std::string no_device_reason(cudaError_t status, int driver, int built_for);

/// Why a GPU of this compute capability cannot be used; empty: it can, if `has_code`.
std::string capability_problem(const std::string& name, int major, int minor, bool has_code);

}  // namespace tensorfold::backend::cuda
