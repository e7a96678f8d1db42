// Paged grouped-query attention with one summation order for every row.
//
// Keys lie in tiles of 64 and partitions of 512 at absolute positions. Inside a partition, tile by tile:
//   S = Q K^T * scale (chain over the head's values), m' = max(m, S), a = exp(m - m'), P = exp(S - m'),
//   O = O a + bf16(P) V (chain over the tile's keys), l = l a + sum P.
// A row's partitions are merged in order: O = sum O_p exp(m_p - m), l likewise, m the largest m_p. A tile or partition
// that a row cannot see changes nothing, so it does not matter who shares the block.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "backend/cuda/activation.cuh"
#include "backend/cuda/device_plan.h"

namespace tensorfold::backend::cuda {

struct AttentionArguments {
  Activation query;  ///< data null: only keys and values are written
  Activation key;
  Activation value;
  Activation output;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  float epsilon = 0.0F;
  const float* frequencies = nullptr;
  int32_t frequency_count = 0;
  int32_t interleaved = 0;
  float scale = 1.0F;
  int32_t window = 0;
  int32_t bidirectional = 0;
  int32_t gated = 0;
  int32_t kind = 0;  ///< index of the work list in the plan
  uint16_t* pages = nullptr;
  uint16_t* window_keys = nullptr;
  int64_t width = 0;  ///< of a token's keys and values
  int32_t page_tokens = 0;
  uint16_t* queries = nullptr;  ///< workspace bf16 [rows][heads][head_dim]
  float* partials = nullptr;    ///< workspace [slots][heads][head_dim]
  float2* sums = nullptr;       ///< workspace [slots][heads]: m, l
};

bool attention_supports(int head_dim);

/// Norms and rotates, writes keys and values of all rows (and queries to the workspace).
void launch_attention_prepare(const int32_t* plan, int rows, const AttentionArguments& arguments, cudaStream_t stream);
/// Work items [first_item, first_item + items).
void launch_attention_partials(const int32_t* plan, int first_item, int items, const AttentionArguments& arguments,
                               cudaStream_t stream);
/// Rows [first_row, first_row + rows).
void launch_attention_merge(const int32_t* plan, int first_row, int rows, const AttentionArguments& arguments,
                            cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
