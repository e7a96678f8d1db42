// Small kernels that treat each row by itself: embedding, norm, copies, the draft block's convolution.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "backend/cuda/activation.cuh"
#include "backend/cuda/pack.h"

namespace tensorfold::backend::cuda {

// `plan`: the device plan (device_plan.h). Kernels are launched for `rows` rows and skip those the plan does not have.

/// An embedding as it lies in the checkpoint; rows are dequantised when they are looked up.
struct EmbeddingTable {
  PackSource source;  ///< all rows, in checkpoint layout
  int32_t vocabulary = 0;
};

void launch_embed(const int32_t* plan, int rows, const EmbeddingTable& table, float scale, Activation output,
                  cudaStream_t stream);

/// Rows of a plan (or its logit rows, output row j from plan row logit_rows[j]).
void launch_rms_norm(const int32_t* plan, int rows, bool logit_rows, Activation input, const float* weight,
                     float epsilon, Activation output, cudaStream_t stream);
/// Scaled rows for a product (scaled_rows.cuh): bf16(x gain), and each row's scale.
void launch_scaled_rows(const int32_t* plan, int rows, bool logit_rows, Activation input, const float* gains,
                        float epsilon, Activation output, float* scales, cudaStream_t stream);
void launch_copy(const int32_t* plan, int rows, bool logit_rows, Activation input, Activation output,
                 cudaStream_t stream);
/// output row first + j = input row rows[j], rows on the device.
void launch_gather(const int32_t* rows, int count, Activation input, Activation output, int first, cudaStream_t stream);
/// values: fp32 row-major [count][width] <-> rows [first, first + count) of a tensor.
void launch_read_rows(Activation tensor, int64_t first, int64_t count, float* values, cudaStream_t stream);
void launch_write_rows(Activation tensor, int64_t first, int64_t count, const float* values, cudaStream_t stream);

struct BlockConvolutionArguments {
  Activation input;
  Activation dynamic;
  const float* base = nullptr;
  int32_t side = 0;
  int32_t group = 1;
  int32_t add = 0;
  Activation output;
};
void launch_block_convolution(const int32_t* plan, int rows, const BlockConvolutionArguments& arguments,
                              cudaStream_t stream);

}  // namespace tensorfold::backend::cuda
