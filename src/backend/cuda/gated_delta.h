// The gated delta rule's layer: convolution, gates, step, gated norm (Qwen3.8-27B specification A.5). The step is one
// function, applied token by token in fp32, for prompts, windows and commits alike.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "backend/cache.h"
#include "backend/cuda/activation.cuh"
#include "backend/cuda/device_plan.h"

namespace tensorfold::backend::cuda {

struct GatedDeltaArguments {
  GatedDeltaShape shape;
  Activation mixed;  ///< raw q | k | v
  Activation gate;
  Activation beta;
  Activation decay;
  Activation output;
  const float* convolution = nullptr;
  const float* decay_log = nullptr;
  const float* decay_bias = nullptr;
  const float* norm = nullptr;
  float epsilon = 0.0F;
  float key_epsilon = 1e-6F;
  float* states = nullptr;    ///< [slots][value_heads][value_dim][key_dim]
  uint16_t* tails = nullptr;  ///< [slots][kernel - 1][channels], bf16
  float* record_steps = nullptr;
  uint16_t* record_raw = nullptr;
  float* steps = nullptr;    ///< workspace [rows][channels + 2 value_heads]: normed q | k, v, decays, betas
  float* outputs = nullptr;  ///< workspace [rows][value_heads][value_dim]
};

bool gated_delta_supports(const GatedDeltaShape& shape);

void launch_gated_delta(const int32_t* plan, int rows, int sequences, const GatedDeltaArguments& arguments,
                        cudaStream_t stream);

/// A kept path on the device: records [begin, begin + count) of a list of window records.
struct KeptSequence {
  int32_t state_slot = 0;
  int32_t begin = 0;
  int32_t count = 0;
};
/// What commit needs of one layer.
struct DeltaLayer {
  float* states = nullptr;
  uint16_t* tails = nullptr;
  const float* record_steps = nullptr;
  const uint16_t* record_raw = nullptr;
};
/// Replays the kept records of every sequence into the committed state and tail of `layers` layers of equal shape.
void launch_gated_delta_commit(const KeptSequence* kept, int sequences, const int32_t* records,
                               const GatedDeltaShape& shape, const DeltaLayer* layers, int layer_count,
                               cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
