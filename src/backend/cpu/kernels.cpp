#include "backend/cpu/kernels.h"

#include <cstdlib>
#include <vector>

#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

/// A level by name.
struct Level {
  const char* name;
  const KernelTable& (*kernels)();
  bool available;
};

/// Best first.
std::vector<Level> known_levels() {
  std::vector<Level> levels;
#if defined(__x86_64__)
  const bool avx2 =
      __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("bmi2") != 0;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  levels.push_back({"avx512", avx512_kernels, avx512});
  levels.push_back({"avx2", avx2_kernels, avx2});
#elif defined(__aarch64__)
  levels.push_back({"neon", neon_kernels, true});
#endif
  levels.push_back({"portable", portable_kernels, true});
  return levels;
}

}  // namespace

const KernelTable& select_kernels(const std::string& level) {
  std::string wanted = level;
  if (const char* from_environment = std::getenv("TENSORFOLD_SIMD"); wanted.empty() && from_environment != nullptr)
    wanted = from_environment;
  std::string names;
  for (const Level& known : known_levels()) {
    if (wanted.empty() ? known.available : wanted == known.name && known.available) return known.kernels();
    if (known.available) names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  fail(ErrorKind::unsupported, "SIMD level \"{}\" is not available here; this program and processor have: {}", wanted,
       names);
}

}  // namespace tensorfold::backend::cpu
