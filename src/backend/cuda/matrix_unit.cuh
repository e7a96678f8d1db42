// The tensor-core step that every product and every attention score is a chain of, and the weights' fragments.
//
// One step is mma.sync.m16n8k16 (bf16 in, fp32 accumulate). A chain of steps over ascending k gives the same bits for
// an output element whatever stands in the other rows and columns; wgmma chains give the same bits too (the chain
// test).
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "backend/cuda/scale_range.h"

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

/// Two codes at the same bits of a word's halves. Volatile: it stays between the tensor-core steps where it is written,
/// which hides both latencies.
__device__ inline uint32_t affine_pair(uint32_t codes, uint32_t scale, uint32_t bias) {
  uint32_t weight = 0;
  asm volatile("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(weight) : "r"(codes), "r"(scale), "r"(bias));
  return weight;
}

/// A (scale, bias) pair's halves, each twice.
__device__ inline uint32_t both_low(uint32_t pair) { return __byte_perm(pair, pair, 0x1010); }
__device__ inline uint32_t both_high(uint32_t pair) { return __byte_perm(pair, pair, 0x3232); }

/// A group's scales and biases of a lane's two rows, each twice in a word. (An fma can choose halves itself, but then
/// prompts are 5 % slower.)
struct AffineScales {
  uint32_t low;
  uint32_t low_bias;
  uint32_t high;
  uint32_t high_bias;
  /// (scale, bias) of the two rows.
  __device__ explicit AffineScales(const uint2& pairs)
      : low(both_low(pairs.x)), low_bias(both_high(pairs.x)), high(both_low(pairs.y)), high_bias(both_high(pairs.y)) {}
};

/// The fragment of one k16 step from one word: nibble 0/4: row l/4, k 0/1; 1/5: row + 8; 2/6: k + 8; 3/7: both.
__device__ inline void affine_fragment(uint32_t (&a)[4], uint32_t word, const AffineScales& s) {
  const uint32_t late = word >> 8;
  a[0] = affine_pair(word & 0x000F000FU, s.low, s.low_bias);
  a[1] = affine_pair(word & 0x00F000F0U, s.high, s.high_bias);
  a[2] = affine_pair(late & 0x000F000FU, s.low, s.low_bias);
  a[3] = affine_pair(late & 0x00F000F0U, s.high, s.high_bias);
}

/// What a lane holds of one tile's weights in one group: codes, scales and biases.
struct AffineGroup {
  uint4 words;
  uint2 pairs;
};

/// `codes`, `pairs`: this lane's, shared addresses. Volatile: it stays where it is written.
__device__ inline void load_affine(AffineGroup& to, uint32_t codes, uint32_t pairs) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(to.words.x), "=r"(to.words.y), "=r"(to.words.z), "=r"(to.words.w)
               : "r"(codes)
               : "memory");
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(to.pairs.x), "=r"(to.pairs.y) : "r"(pairs) : "memory");
}

/// The fragments of a group's four steps.
__device__ inline void affine_fragments(uint32_t (&a)[4][4], const AffineGroup& group) {
  const AffineScales scales(group.pairs);
  affine_fragment(a[0], group.words.x, scales);
  affine_fragment(a[1], group.words.y, scales);
  affine_fragment(a[2], group.words.z, scales);
  affine_fragment(a[3], group.words.w, scales);
}

}  // namespace tensorfold::backend::cuda
