// The kernels of one SIMD level behind function pointers. Each is written once, as a template over sixteen lanes
// (product_kernels.h and its neighbours), and compiled once a level; all levels give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/cpu/packed_matrix.h"

namespace tensorfold::backend::cpu {

/// Most input rows that dot_tile takes at once.
inline constexpr int64_t kTileRows = 6;
/// Most input rows that dot_slice takes at once.
inline constexpr int64_t kFewRows = 8;
/// Most residual streams that write_streams takes.
inline constexpr int64_t kMostStreams = 8;

/// One partition of attention: queries of `heads` heads that share a key head, against `count` keys.
/// Result of a head: value_dim weighted sums, then their maximum score and the sum of weights (result_stride apart).
struct AttendPartition {
  const float* const* rows = nullptr;  ///< cache row (all heads) of each key
  int64_t first_position = 0;          ///< absolute position of rows[0]; tiles are 64-aligned in absolute positions
  int64_t count = 0;                   ///< >= 1
  int64_t key_offset = 0;              ///< of this key head within a cache row
  int64_t value_offset = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t heads = 0;
  const float* queries = nullptr;  ///< [heads][key_dim]
  float scale = 1.0F;
  float* results = nullptr;
  int64_t result_stride = 0;
};

/// Scores of blocks by their pooled keys; see IndexKernels.
struct BlockScores {
  const float* const* keys = nullptr;  ///< [count][dim]
  int64_t count = 0;
  const float* queries = nullptr;  ///< [heads][dim]
  const float* weights = nullptr;  ///< [heads]
  int64_t heads = 0;
  int64_t dim = 0;
  float scale = 1.0F;
  float* scores = nullptr;  ///< [count]
};

/// One token's gated delta step of one value head.
struct DeltaStep {
  float* state = nullptr;         ///< [value_dim][key_dim], updated
  const float* source = nullptr;  ///< the state before; may be `state`
  const float* query = nullptr;   ///< normalised; null: the output is not wanted
  const float* key = nullptr;     ///< normalised
  const float* value = nullptr;
  float decay = 1.0F;
  const float* decays = nullptr;  ///< [key_dim], in place of `decay`; null: none
  float beta = 0.0F;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  float* output = nullptr;  ///< [value_dim]
};

/// One token's Mamba-2 step of one head.
struct MambaStep {
  float* state = nullptr;         ///< [head_dim][state_dim], updated
  const float* source = nullptr;  ///< the state before; may be `state`
  const float* input = nullptr;   ///< x, [head_dim]
  const float* in = nullptr;      ///< B, [state_dim]
  const float* out = nullptr;     ///< C, [state_dim]; null: the output is not wanted
  float decay = 1.0F;
  float step = 0.0F;
  float skip = 0.0F;
  int64_t head_dim = 0;
  int64_t state_dim = 0;
  float* output = nullptr;  ///< [head_dim]
};

struct KernelTable {
  const char* level = "";

  /// The sum of `n` values (a multiple of 128): reads memory as fast as the level can.
  float (*total)(const float* from, int64_t n);

  /// Dequantises one slice of a tile: panel[inputs / 16][kTileOutputs][16]. `slice` points to its scales.
  void (*unpack_slice)(const PackedMatrix& matrix, const std::byte* slice, int64_t inputs, float* panel);
  /// sums[r][o] = the slice's dot product of input row r and panel output o; 1 <= rows <= kTileRows. Rows stand side by
  /// side, `pitch` of them: x[inputs / 16][pitch][16].
  void (*dot_tile)(const float* x, int64_t pitch, int64_t rows, const float* panel, int64_t inputs, float* sums);
  /// The same sums straight from a tile's slice for 1 <= rows <= kFewRows, the pitch; `panel` is room for one.
  /// one.
  void (*dot_slice)(const PackedMatrix& matrix, const std::byte* slice, int64_t inputs, const float* x, int64_t rows,
                    float* panel, float* sums);
  /// to[k] = fma(coefficients[o], panel weight of output o and input k, to[k]) for the panel's outputs in order.
  void (*add_transposed)(const float* panel, int64_t inputs, const float* coefficients, float* to);

  /// The sum of a[k] * b[k]: lane k mod 16, then the fixed tree.
  float (*dot)(const float* a, const float* b, int64_t n);
  /// to = from * (mean(from^2) + epsilon)^(-1/2) [* weight]; weight may be null.
  void (*rms_norm)(const float* from, const float* weight, int64_t n, float epsilon, float* to);
  /// to = (from - mean) * (variance + epsilon)^(-1/2) * weight + bias.
  void (*layer_norm)(const float* from, const float* weight, const float* bias, int64_t n, float epsilon, float* to);
  void (*add)(const float* from, int64_t n, float* to);                      ///< to += from
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* to);  ///< to = silu(gate) * up
  /// The same of gate at most `limit` and up within [-limit, limit].
  void (*limited_swiglu)(const float* gate, const float* up, float limit, int64_t n, float* to);
  void (*geglu)(const float* gate, const float* up, int64_t n, float* to);    ///< to = gelu_tanh(gate) * up
  void (*relu_squared)(const float* from, int64_t n, float* to);              ///< to = max(from, 0)^2
  void (*add_scaled)(float factor, const float* from, int64_t n, float* to);  ///< to = fma(factor, from, to)
  void (*soft_cap)(float cap, int64_t n, float* values);                      ///< values = cap tanh(values / cap)
  void (*multiply_sigmoid)(const float* gate, int64_t n, float* to);          ///< to *= sigmoid(gate)
  void (*multiply_silu)(const float* gate, int64_t n, float* to);             ///< to *= silu(gate)
  void (*scale)(float factor, int64_t n, float* to);                          ///< to *= factor

  void (*attend)(const AttendPartition& partition);
  /// Merges `count` partition results (`stride` apart) in order and divides: to = [value_dim].
  void (*merge)(const float* results, int64_t count, int64_t stride, int64_t value_dim, float* to);

  /// to = silu(bias + sum_j taps[j] * rows[j]), j ascending, `channels` wide; a null row or bias is zero.
  void (*convolve)(const float* const* rows, const float* taps, const float* bias, int64_t kernel, int64_t channels,
                   float* to);
  /// to = exp(bound * sigmoid(rate * (from + bias))).
  void (*channel_decay)(const float* from, const float* bias, float rate, float bound, int64_t n, float* to);
  void (*delta_step)(const DeltaStep& step);
  void (*mamba_step)(const MambaStep& step);

  void (*pool_mean)(const float* const* keys, int64_t count, int64_t dim, float* to);
  /// Of rows key | gate; positions: [count][dim], added to the gates.
  void (*pool_gated)(const float* const* keys, const float* positions, int64_t count, int64_t dim, float* to);
  void (*score_blocks)(const BlockScores& scores);

  /// to = sum over s of weights[s] * streams[s]; streams: [count][width].
  void (*read_streams)(const float* streams, const float* weights, int64_t count, int64_t width, float* to);
  /// streams[t] = writes[t] * branch + sum over s of mix[s][t] * streams[s].
  void (*write_streams)(const float* branch, const float* writes, const float* mix, int64_t count, int64_t width,
                        float* streams);
};

const KernelTable& portable_kernels();
const KernelTable& avx2_kernels();    ///< x86-64 builds only
const KernelTable& avx512_kernels();  ///< x86-64 builds only
const KernelTable& neon_kernels();    ///< 64-bit Arm builds only

/// The best level this processor has, or the one named; TENSORFOLD_SIMD names one where `level` is empty. Throws
/// Error(unsupported) with the levels there are.
const KernelTable& select_kernels(const std::string& level);

}  // namespace tensorfold::backend::cpu
