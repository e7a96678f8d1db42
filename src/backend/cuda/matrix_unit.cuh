// The tensor-core step that every product and every attention score is a chain of, and the weights' fragments.
//
// One step is mma.sync.m16n8k16 (bf16 in, fp32 accumulate). A chain of steps over ascending k gives the same bits for
// an output element whatever stands in the other rows and columns; wgmma chains give the same bits too (the chain
// test).
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

namespace tensorfold::backend::cuda {

/// d += a b. Lane l holds of a (16x16): rows l/4 and l/4 + 8, columns 2(l%4), +1, +8, +9; of b (16x8): rows 2(l%4), +1,
/// +8, +9 of column l/4; of d (16x8): rows l/4 (d[0], d[1]) and l/4 + 8 (d[2], d[3]), columns 2(l%4), +1.
__device__ inline void mma_step(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8x8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// The exponent by which stored scales are raised so that a code in bits 4..7 of a bf16, read as a (sub)normal number
/// code * 2^-129, needs no conversion: fma(code * 2^-129, scale * 2^129, bias) rounds once, as fma(code, scale, bias).
constexpr int kScaleExponent = 129;
/// Scales must be below this for scale * 2^129 to be finite in bf16.
constexpr float kScaleLimit = 0.5F;

/// One rounding: bf16(code * scale + bias), two codes at bits 4..7 and 20..23. Volatile: it stays between the
/// tensor-core steps where it is written, which hides both latencies.
__device__ inline uint32_t affine_pair(uint32_t codes, uint32_t scale, uint32_t bias) {
  uint32_t weight = 0;
  asm volatile("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(weight) : "r"(codes & 0x00F000F0U), "r"(scale), "r"(bias));
  return weight;
}

/// The fragment of one k16 step from one word: nibble 0/4: row l/4, k 0/1; 1/5: row + 8; 2/6: k + 8; 3/7: both. (One
/// shift to the right; those to the left are multiplications, for which there is more room.)
__device__ inline void affine_fragment(uint32_t (&a)[4], uint32_t word, uint32_t scale_low, uint32_t bias_low,
                                       uint32_t scale_high, uint32_t bias_high) {
  uint32_t late = 0;
  asm volatile("shr.u32 %0, %1, 8;" : "=r"(late) : "r"(word));
  a[0] = affine_pair(word << 4, scale_low, bias_low);
  a[1] = affine_pair(word, scale_high, bias_high);
  a[2] = affine_pair(late << 4, scale_low, bias_low);
  a[3] = affine_pair(late, scale_high, bias_high);
}

/// A (scale, bias) pair's halves, each twice.
__device__ inline uint32_t both_low(uint32_t pair) { return __byte_perm(pair, pair, 0x1010); }
__device__ inline uint32_t both_high(uint32_t pair) { return __byte_perm(pair, pair, 0x3232); }

}  // namespace tensorfold::backend::cuda
