// Whether this build's kernels run on the current GPU.
#pragma once

namespace tensorfold::backend::cuda {

/// False where the program holds no code for the GPU.
bool has_kernels();

}  // namespace tensorfold::backend::cuda
