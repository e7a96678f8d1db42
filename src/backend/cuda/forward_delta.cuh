// The gated delta layer inside the forward kernel: one unit is a sequence and a value head; convolution, gates, steps
// and the gated norm stay in shared memory. The same functions in the same order as gated_delta.cu.
#pragma once

#include "backend/cuda/forward_layout.h"
#include "backend/cuda/gated_delta_step.cuh"

namespace tensorfold::backend::cuda {

constexpr int kMostProgramRows = 32;

__device__ inline void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory"); }

/// Inputs of a unit's rows and what comes out.
struct DeltaScratch {
  float query[kMostProgramRows][kKeyDim];
  float key[kMostProgramRows][kKeyDim];
  float value[kMostProgramRows][kMostDeltaValues];
  float output[kMostProgramRows][kMostDeltaValues];
  float decay[kMostProgramRows];
  float beta[kMostProgramRows];
  int32_t parents[kMostProgramRows];
};
static_assert(sizeof(DeltaScratch) <= kScratchBytes);

/// One warp: convolves (and norms) one vector of one row: `which` 0 query, 1 key, 2 value.
__device__ inline void convolve_vector(const PlanView& plan, const GatedDeltaArguments& a, DeltaScratch& s,
                                       const DeviceSequence& sequence, int head, int index, int which, int lane) {
  const GatedDeltaShape& shape = a.shape;
  const int row = sequence.first_row + index;
  const Taps taps = find_taps(plan.parents(), shape.kernel, row);
  const int record = plan.records()[row];
  const int ratio = shape.value_heads / shape.key_heads;
  const int key_head = head / ratio;
  const bool records = record >= 0 && (which == 2 || head % ratio == 0);
  const int dim = which == 2 ? shape.value_dim : shape.key_dim;
  const int first = which == 2 ? 2 * shape.key_heads * shape.key_dim + head * shape.value_dim
                               : (which * shape.key_heads + key_head) * shape.key_dim;
  const int64_t channels = channels_of(shape);
  float* to_record = a.record_steps + record * (channels + 2 * shape.value_heads);
  const uint16_t* tail = a.tails + static_cast<int64_t>(sequence.state_slot) * (shape.kernel - 1) * channels;
  float values[kKeyDim / 32];
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kKeyDim / 32; ++i) {
    if (i * 32 >= dim) break;
    const int channel = first + i * 32 + lane;
    float raw[kMostTaps];
#pragma unroll
    for (int back = 0; back < kMostTaps; ++back) {
      if (back >= shape.kernel) break;
      const int source = taps.source[back];
      raw[back] = source >= 0 ? __bfloat162float(__float2bfloat16_rn(a.mixed.get(source, channel)))
                              : from_bits(tail[(-1 - source) * channels + channel]);
    }
    float value = 0.0F;
#pragma unroll
    for (int back = kMostTaps - 1; back >= 0; --back) {
      if (back >= shape.kernel) continue;
      value =
          fmaf(a.convolution[static_cast<int64_t>(channel) * shape.kernel + shape.kernel - 1 - back], raw[back], value);
    }
    if (records) a.record_raw[record * channels + channel] = __bfloat16_as_ushort(__float2bfloat16_rn(raw[0]));
    values[i] = silu(value);
    sum = fmaf(values[i], values[i], sum);
  }
  float scale = 1.0F;
  if (which != 2) {
    const auto width = static_cast<float>(shape.key_dim);
    const float root = sqrtf(width);
    scale = rsqrtf(warp_sum(sum) / width + a.key_epsilon) / (which == 0 ? width : root);
  }
  float* to = which == 0 ? s.query[index] : which == 1 ? s.key[index] : s.value[index];
#pragma unroll
  for (int i = 0; i < kKeyDim / 32; ++i) {
    if (i * 32 >= dim) break;
    const float value = which == 2 ? values[i] : values[i] * scale;
    to[i * 32 + lane] = value;
    if (records) to_record[first + i * 32 + lane] = value;
  }
  if (which == 2 && lane == 0) {
    const float shifted = a.decay.get(row, head) + a.decay_bias[head];
    const float softplus = shifted > 20.0F ? shifted : log1pf(__expf(shifted));
    const float decay = __expf(-__expf(a.decay_log[head]) * softplus);
    const float beta = 1.0F / (1.0F + __expf(-a.beta.get(row, head)));
    s.decay[index] = decay;
    s.beta[index] = beta;
    const int parent = plan.parents()[row];
    s.parents[index] = parent < 0 ? -1 : parent - sequence.first_row;
    if (record >= 0) {
      to_record[channels + head] = decay;
      to_record[channels + shape.value_heads + head] = beta;
    }
  }
}

__device__ inline StepInputs scratch_inputs(const DeltaScratch& s, int index, int value_row, int lane) {
  StepInputs in;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    in.query[i] = *reinterpret_cast<const float4*>(&s.query[index][i * 32 + lane * 4]);
    in.key[i] = *reinterpret_cast<const float4*>(&s.key[index][i * 32 + lane * 4]);
  }
  in.value = s.value[index][value_row];
  in.decay = s.decay[index];
  in.beta = s.beta[index];
  return in;
}

/// One value row of the state, walked along the sequence's rows (a window's rows may branch).
__device__ inline void walk_rows(State& state, const GatedDeltaArguments& a, DeltaScratch& s, int slot, int rows,
                                 const Place& place) {
  int current = -1;
  for (int index = 0; index < rows; ++index) {
    const int parent = s.parents[index];
    if (parent != current) {  // back to the committed state, then along the path to the parent
      load_state(state, a.states, a.shape, slot, place);
      int depth = 0;
      for (int up = parent; up >= 0; up = s.parents[up]) ++depth;
      for (int i = depth; i > 0; --i) {
        int ancestor = index;
        for (int j = 0; j < i; ++j) ancestor = s.parents[ancestor];
        step(state, scratch_inputs(s, ancestor, place.row, place.lane));
      }
    }
    const StepInputs in = scratch_inputs(s, index, place.row, place.lane);
    step(state, in);
    current = index;
    const float value = dot(state.s, in.query);
    if (place.lane == 0) s.output[index][place.row] = value;
  }
}

/// One warp: silu(z) * RMSNorm(o) of one row.
__device__ inline void gate_row(const GatedDeltaArguments& a, const DeltaScratch& s, int row, int index, int head,
                                int lane) {
  const int dim = a.shape.value_dim;
  const float* from = s.output[index];
  float sum = 0.0F;
  for (int i = lane; i < dim; i += 32) sum = fmaf(from[i], from[i], sum);
  const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(dim) + a.epsilon);
  for (int i = lane; i < dim; i += 32) {
    const float gate = a.gate.get(row, head * dim + i);
    a.output.set(row, head * dim + i, silu(gate) * (from[i] * scale * a.norm[i]));
  }
}

/// All units of this thread block. `wait` comes before the first byte that earlier operations wrote.
template <typename Wait>
__device__ inline void run_delta(const PlanView& plan, const GatedDeltaArguments& a, uint8_t* memory, Wait&& wait) {
  auto& s = *reinterpret_cast<DeltaScratch*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int heads = a.shape.value_heads;
  const int units = plan.header().sequences * heads;
  bool waited = false;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    const DeviceSequence sequence = plan.sequences()[unit / heads];
    Place place{};
    place.head = unit % heads;
    place.key_head = place.head / (heads / a.shape.key_heads);
    place.lane = thread % 8;
    place.row = thread / 8;  // and 64 further
    // Committed states were written before this forward began: their loads need not wait.
    State states[2];
    Place places[2] = {place, place};
    places[1].row += 64;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (warp < 16 && places[i].row < a.shape.value_dim)
        load_state(states[i], a.states, a.shape, sequence.state_slot, places[i]);
    if (!waited) wait();
    waited = true;
    for (int task = warp; task < sequence.row_count * 3; task += kConsumerWarps)
      convolve_vector(plan, a, s, sequence, place.head, task / 3, task % 3, lane);
    consumers_sync();
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (warp < 16 && places[i].row < a.shape.value_dim) {
        walk_rows(states[i], a, s, sequence.state_slot, sequence.row_count, places[i]);
        if (sequence.keep_all != 0) store_state(states[i], a.states, a.shape, sequence.state_slot, places[i]);
      }
    consumers_sync();
    for (int index = warp; index < sequence.row_count; index += kConsumerWarps)
      gate_row(a, s, sequence.first_row + index, index, place.head, lane);
  }
  if (!waited) wait();
}

/// Sequences that keep all: the tail becomes the last kernel - 1 raw rows of [old tail, rows].
__device__ inline void move_tail(const GatedDeltaArguments& a, const DeviceSequence& sequence, int64_t channel) {
  const int64_t channels = channels_of(a.shape);
  const int kept = a.shape.kernel - 1;
  uint16_t* tail = a.tails + static_cast<int64_t>(sequence.state_slot) * kept * channels + channel;
  for (int i = 0; i < kept; ++i) {
    const int from = sequence.row_count - kept + i;  // row of the sequence, negative: in the old tail
    tail[i * channels] =
        from < 0 ? tail[(kept + from) * channels]
                 : __bfloat16_as_ushort(__float2bfloat16_rn(a.mixed.get(sequence.first_row + from, channel)));
  }
}

}  // namespace tensorfold::backend::cuda
