// The AVX2 level. Only functions defined between the target attributes may use its instructions: standard headers
// come before, and everything between depends on the lanes type, so no other level can end up with this code.
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi2")
#endif

#include "backend/cpu/lanes_avx2.h"
#include "backend/cpu/level_kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace tensorfold::backend::cpu {

const KernelTable& avx2_kernels() {
  static const KernelTable table = make_kernel_table<Avx2Lanes>("avx2");
  return table;
}

}  // namespace tensorfold::backend::cpu

#endif
