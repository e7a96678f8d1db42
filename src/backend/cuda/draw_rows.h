// Draws and candidates on the device (backend/row_draw.h): a cluster of thread blocks a row.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "backend/draw.h"
#include "backend/row_draw.h"

namespace tensorfold::backend::cuda {

/// One row to draw. All pointers lead to device memory.
struct DrawTask {
  const float* raw = nullptr;  ///< the row as the model gave it
  float* adjusted = nullptr;   ///< room for a copy that penalties and biases change; null: neither
  const uint32_t* mask = nullptr;
  const TokenCount* counts = nullptr;
  const LogitBias* biases = nullptr;
  int32_t mask_words = 0;
  int32_t count_entries = 0;  ///< no token twice
  int32_t bias_entries = 0;   ///< no token twice
  float repetition = 1.0F;
  float frequency = 0.0F;
  float presence = 0.0F;
  row_draw::Request request;
};

struct DrawResult {
  int32_t token = -1;
  int32_t ranked = 0;
  float best = 0.0F;   ///< highest logit as the model gave them
  float logit = 0.0F;  ///< of the token
  int64_t total = 0;   ///< fixed-point mass at temperature 1
  int32_t ids[Drawn::most_logprobs] = {};
  float logits[Drawn::most_logprobs] = {};
};

/// tasks, results: [count] on the device. Copies and changes rows with penalties or biases first.
void launch_draws(const DrawTask* tasks, int count, bool any_adjusted, int32_t vocabulary, DrawResult* results,
                  cudaStream_t stream);

/// The `wanted` first of each row's order: ids and logits, [rows][wanted]; wanted at most row_draw::kMostListed.
void launch_candidates(const float* logits, int64_t stride, int rows, int32_t vocabulary, int32_t wanted, int32_t* ids,
                       float* values, cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
