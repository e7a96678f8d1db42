// The stand-in that is linked where the CUDA backend is not built.
#include "backend/backend.h"
#include "backend/cuda/copy_bandwidth.h"
#include "base/error.h"

namespace tensorfold::backend {
namespace {

[[noreturn]] void say_it_is_missing() {
  fail(ErrorKind::unsupported, "this build has no CUDA backend; use --backend cpu, or build where nvcc is installed");
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int) { say_it_is_missing(); }

double cuda::measure_copy_bandwidth(int) { say_it_is_missing(); }

}  // namespace tensorfold::backend
