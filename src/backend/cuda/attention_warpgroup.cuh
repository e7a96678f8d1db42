// The warpgroup steps of attention (wgmma). A chain of them over ascending k has the bits of a chain of mma_step.
//
// All operands in shared memory are tiles of 64 rows by groups of 64 columns, [columns / 64][64 rows][64], rows of 128
// bytes in the 128-byte swizzle (key_place.cuh); tiles begin at multiples of 1,024 bytes.
#pragma once

#include <cstdint>

#include "backend/cuda/warpgroup_step.cuh"

namespace tensorfold::backend::cuda {

/// `groups`: bytes from a group of 64 columns to the next (of a transposed operand; else unused); eight rows further
/// are 1,024 bytes on.
__device__ inline uint64_t swizzled_descriptor(uint32_t address, uint32_t groups) {
  return static_cast<uint64_t>((address & 0x3FFFFU) >> 4) | (static_cast<uint64_t>(groups >> 4) << 16) |
         (static_cast<uint64_t>(1024 >> 4) << 32) | (uint64_t{1} << 62);
}

/// d (64 x 64) = or += a (64 x 16) b (64 x 16, transposed), both in shared memory.
__device__ inline void warpgroup_step(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, %32, %33, p, 1, 1, 0, 0;\n}"
      : TENSORFOLD_SIXTEEN_SUMS(d, 0), TENSORFOLD_SIXTEEN_SUMS(d, 16)
      : "l"(a), "l"(b), "r"(accumulate));
}

/// d (64 x 128) += a (64 x 16, registers) b (16 x 128, shared memory).
__device__ inline void warpgroup_step(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
      : TENSORFOLD_SIXTEEN_SUMS(d, 0), TENSORFOLD_SIXTEEN_SUMS(d, 16), TENSORFOLD_SIXTEEN_SUMS(d, 32),
        TENSORFOLD_SIXTEEN_SUMS(d, 48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

}  // namespace tensorfold::backend::cuda
