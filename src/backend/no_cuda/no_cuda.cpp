// The stand-in that is linked where the CUDA backend is not built.
#include "backend/backend.h"
#include "base/error.h"

namespace tensorfold::backend {

std::unique_ptr<Backend> make_cuda_backend(int) {
  fail(ErrorKind::unsupported, "this build has no CUDA backend; use --backend cpu, or build where nvcc is installed");
}

}  // namespace tensorfold::backend
