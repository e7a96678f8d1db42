// Query and key norms, rotary embedding, the cache write; and the merge of partial results with the output gate.
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/attention.h"
#include "backend/cuda/launch.h"

namespace tensorfold::backend::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMostHeadDim = 256;

__device__ uint16_t* key_row(const PlanView& plan, const AttentionArguments& a, int row) {
  const DeviceSequence& sequence = plan.sequences()[plan.owner()[row]];
  const int record = plan.records()[row];
  if (record >= 0) return a.window_keys + record * a.width;
  const int position = plan.positions()[row];
  const int64_t page = plan.pages()[sequence.first_page + position / a.page_tokens];
  return a.pages + (page * a.page_tokens + position % a.page_tokens) * a.width;
}

/// One warp: norm and rotation of one head's vector, one rounding to bf16 at the end.
__device__ void write_head(const AttentionArguments& a, const Activation& from, int row, int column, const float* norm,
                           int position, float* values, uint16_t* to, int lane) {
  const int per_lane = a.head_dim / 32;
  float sum = 0.0F;
  for (int i = 0; i < per_lane; ++i) {
    const int at = lane * per_lane + i;
    const float value = from.get(row, column + at);
    values[at] = value;
    sum = fmaf(value, value, sum);
  }
  if (norm != nullptr) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
    const float scale = rsqrtf(sum / static_cast<float>(a.head_dim) + a.epsilon);
    for (int i = 0; i < per_lane; ++i) {
      const int at = lane * per_lane + i;
      values[at] = values[at] * scale * norm[at];
    }
  }
  __syncwarp();
  for (int i = 0; i < per_lane; ++i) {
    const int at = lane * per_lane + i;
    float value = values[at];
    if (at < 2 * a.frequency_count) {
      const int pair = a.interleaved != 0 ? at / 2 : at % a.frequency_count;
      const int first = a.interleaved != 0 ? pair * 2 : pair;
      const int second = a.interleaved != 0 ? pair * 2 + 1 : pair + a.frequency_count;
      float sine = 0.0F;
      float cosine = 0.0F;
      sincosf(static_cast<float>(position) * a.frequencies[pair], &sine, &cosine);
      value =
          at == first ? values[first] * cosine - values[second] * sine : values[second] * cosine + values[first] * sine;
    }
    to[at] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
}

__global__ void prepare_kernel(PlanView plan, const __grid_constant__ AttentionArguments a) {
  __shared__ float values[kWarps][kMostHeadDim];
  allow_next_kernel();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x);
  const bool exists = row < plan.header().rows;
  const int queries = a.query.data != nullptr ? a.heads : 0;
  int head = static_cast<int>(blockIdx.y) * kWarps + warp;
  const int position = exists ? plan.positions()[row] : 0;
  uint16_t* keys = exists ? key_row(plan, a, row) : nullptr;
  wait_for_previous_kernels();
  if (!exists) return;
  if (head < queries) {
    const int column = head * a.head_dim * (a.gated != 0 ? 2 : 1);
    write_head(a, a.query, row, column, a.query_norm, position, values[warp],
               a.queries + (static_cast<int64_t>(row) * a.heads + head) * a.head_dim, lane);
    return;
  }
  head -= queries;
  if (head >= 2 * a.kv_heads) return;
  uint16_t* to = keys + static_cast<int64_t>(head) * a.head_dim;
  if (head < a.kv_heads) {
    write_head(a, a.key, row, head * a.head_dim, a.key_norm, position, values[warp], to, lane);
  } else {
    const int column = (head - a.kv_heads) * a.head_dim;
    for (int i = lane; i < a.head_dim; i += 32)
      to[i] = __bfloat16_as_ushort(__float2bfloat16_rn(a.value.get(row, column + i)));
  }
}

__global__ void merge_kernel(PlanView plan, int first_row, const __grid_constant__ AttentionArguments a) {
  allow_next_kernel();
  const int row = first_row + static_cast<int>(blockIdx.x);
  const bool exists = row < plan.header().rows;
  const auto head = static_cast<int>(blockIdx.y);
  const auto at = static_cast<int>(threadIdx.x);
  const AttentionRow where = exists ? plan.attention_rows(a.kind)[row] : AttentionRow{};
  wait_for_previous_kernels();
  if (!exists) return;
  const int64_t first = where.slot - where.first_partition;
  float largest = -INFINITY;
#pragma unroll 8
  for (int p = where.begin; p < where.end; ++p) largest = fmaxf(largest, a.sums[(first + p) * a.heads + head].x);
  float sum = 0.0F;
  float value = 0.0F;
#pragma unroll 8
  for (int p = where.begin; p < where.end; ++p) {
    const int64_t slot = (first + p) * a.heads + head;
    const float2 part = a.sums[slot];
    const float share = part.x == -INFINITY ? 0.0F : __expf(part.x - largest);
    sum = fmaf(part.y, share, sum);
    value = fmaf(a.partials[slot * a.head_dim + at], share, value);
  }
  value = value / sum;
  if (a.gated != 0) {
    const float gate = a.query.get(row, (head * 2 + 1) * a.head_dim + at);
    value = value / (1.0F + __expf(-gate));
  }
  a.output.set(row, static_cast<int64_t>(head) * a.head_dim + at, value);
}

}  // namespace

void launch_attention_prepare(const int32_t* plan, int rows, const AttentionArguments& arguments, cudaStream_t stream) {
  const int heads = (arguments.query.data != nullptr ? arguments.heads : 0) + 2 * arguments.kv_heads;
  launch(prepare_kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>((heads + kWarps - 1) / kWarps)),
         dim3(kWarps * 32), 0, stream, PlanView{plan}, arguments);
}

void launch_attention_merge(const int32_t* plan, int first_row, int rows, const AttentionArguments& arguments,
                            cudaStream_t stream) {
  launch(merge_kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(arguments.heads)),
         dim3(static_cast<unsigned>(arguments.head_dim)), 0, stream, PlanView{plan}, first_row, arguments);
}

}  // namespace tensorfold::backend::cuda
