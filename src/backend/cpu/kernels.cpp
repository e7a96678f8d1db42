#include "backend/cpu/kernels.h"

#include <cstdlib>

#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("bmi2") != 0;
#else
  return false;
#endif
}

}  // namespace

const KernelTable& select_kernels(const std::string& level) {
  std::string wanted = level;
  if (const char* from_environment = std::getenv("TENSORFOLD_SIMD"); wanted.empty() && from_environment != nullptr)
    wanted = from_environment;
  if (wanted == "portable") return portable_kernels();
  if (!wanted.empty() && wanted != "avx512")
    fail(ErrorKind::unsupported, "unknown SIMD level \"{}\"; known: portable, avx512", wanted);
#if defined(__x86_64__)
  if (has_avx512()) return avx512_kernels();
#endif
  if (!wanted.empty()) fail(ErrorKind::unsupported, "this processor has no {}", wanted);
  return portable_kernels();
}

}  // namespace tensorfold::backend::cpu
