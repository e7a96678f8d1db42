// The warpgroup's tensor-core step of products: 64 outputs (four tiles, a warp each, fragments in registers as mma.sync
// has them) by 32 to 256 rows in shared memory. A chain of them has the bits of a chain of mma.sync steps.
#pragma once

#include <cstdint>

namespace tensorfold::backend::cuda {

/// Operands of an asm statement, which no function can list.
#define TENSORFOLD_SIXTEEN_SUMS(d, i)                                                                                 \
  "+f"((d)[(i)]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]), "+f"((d)[(i) + 5]), \
      "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7]), "+f"((d)[(i) + 8]), "+f"((d)[(i) + 9]), "+f"((d)[(i) + 10]),            \
      "+f"((d)[(i) + 11]), "+f"((d)[(i) + 12]), "+f"((d)[(i) + 13]), "+f"((d)[(i) + 14]), "+f"((d)[(i) + 15])

/// d (64 outputs x 32 rows) = or += a (64 x 16, registers) b (16 x 32, shared memory).
__device__ inline void warpgroup_step(float (&d)[16], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
      "{%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
      : TENSORFOLD_SIXTEEN_SUMS(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

/// d (64 outputs x 64 rows) = or += a (64 x 16, registers) b (16 x 64, shared memory).
__device__ inline void warpgroup_step(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
      "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
      : TENSORFOLD_SIXTEEN_SUMS(d, 0), TENSORFOLD_SIXTEEN_SUMS(d, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

/// d (64 outputs x 128 rows) = or += a (64 x 16, registers) b (16 x 128, shared memory).
__device__ inline void warpgroup_step(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
      "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
      : TENSORFOLD_SIXTEEN_SUMS(d, 0), TENSORFOLD_SIXTEEN_SUMS(d, 16), TENSORFOLD_SIXTEEN_SUMS(d, 32),
        TENSORFOLD_SIXTEEN_SUMS(d, 48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

/// d (64 outputs x 256 rows) = or += a (64 x 16, registers) b (16 x 256, shared memory).
__device__ inline void warpgroup_step(float (&d)[128], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
      "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127},"
      "{%128,%129,%130,%131}, %132, p, 1, 1, 0;\n}"
      : TENSORFOLD_SIXTEEN_SUMS(d, 0), TENSORFOLD_SIXTEEN_SUMS(d, 16), TENSORFOLD_SIXTEEN_SUMS(d, 32),
        TENSORFOLD_SIXTEEN_SUMS(d, 48), TENSORFOLD_SIXTEEN_SUMS(d, 64), TENSORFOLD_SIXTEEN_SUMS(d, 80),
        TENSORFOLD_SIXTEEN_SUMS(d, 96), TENSORFOLD_SIXTEEN_SUMS(d, 112)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

__device__ inline void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most `Pending` committed chains run; `d`: of one that has ended.
template <int Pending, int Values>
__device__ inline void warpgroup_wait(float (&d)[Values]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#pragma unroll
  for (int i = 0; i < Values; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// 8x8 blocks of 128 bytes: the next 8 inputs 128 bytes on, the next 8 rows `row_stride` bytes on; no swizzle.
__device__ inline uint64_t rows_descriptor(uint32_t address, uint32_t row_stride = 1024) {
  return static_cast<uint64_t>((address & 0x3FFFFU) >> 4) | (static_cast<uint64_t>(128 >> 4) << 16) |
         (static_cast<uint64_t>(row_stride >> 4) << 32);
}

}  // namespace tensorfold::backend::cuda
