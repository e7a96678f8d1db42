// The gated delta layer inside the forward kernel: one unit is a sequence and a value head; convolution, gates, steps
// and the gated norm stay in shared memory. The same numbers in the same order as gated_delta.cu; the code is kept
// short, because what does not stay in the instruction cache costs more than what it computes.
#pragma once

#include "backend/cuda/forward_memory.cuh"
#include "backend/cuda/gated_delta_step.cuh"
#include "backend/cuda/row_product.cuh"

namespace tensorfold::backend::cuda {

constexpr int kProgramTaps = 4;
constexpr int kValueAt = 2 * kKeyDim;  // columns of DeltaScratch::mixed: query, key, value

struct DeltaScratch {
  float mixed[kMostProgramRows][2 * kKeyDim + kMostDeltaValues];
  float output[kMostProgramRows][kMostDeltaValues];
  float decay[kMostProgramRows];
  float beta[kMostProgramRows];
  int32_t parents[kMostProgramRows];  // inside the sequence
  int32_t records[kMostProgramRows];
};
static_assert(sizeof(DeltaScratch) <= kScratchBytes);

__device__ inline DeltaScratch& delta_scratch() { return *reinterpret_cast<DeltaScratch*>(forward_memory()); }

/// One element of bf16 rows in tiles.
__device__ inline float tile_value(const Activation& from, int row, int column) {
  return __bfloat162float(
      static_cast<const __nv_bfloat16*>(from.data)[tile_index(row, from.offset + column, from.stride)]);
}

/// A unit: where it stands and what a thread loads before it may read anything of this forward.
struct DeltaUnit {
  DeviceSequence sequence;
  int head = 0;
  bool keeps_keys = false;  ///< writes the records of its query and key head
  int channel = 0;          ///< of this thread, if it has one
  bool chain = true;        ///< each row's parent is the row before it
  float4 taps;
  float tail[kProgramTaps - 1];
};

/// Convolution and SiLU of one row; raw: its input, its parent's, ...
__device__ inline void convolve_row(const GatedDeltaArguments& a, const DeltaUnit& unit, int element, int index,
                                    const float (&raw)[kProgramTaps]) {
  DeltaScratch& s = delta_scratch();
  const bool is_value = element >= kValueAt;
  float value = 0.0F;
  value = fmaf(unit.taps.x, raw[3], value);
  value = fmaf(unit.taps.y, raw[2], value);
  value = fmaf(unit.taps.z, raw[1], value);
  value = fmaf(unit.taps.w, raw[0], value);
  value = silu(value);
  s.mixed[index][element] = value;
  const int record = s.records[index];
  if (record < 0 || !(is_value || unit.keeps_keys)) return;
  const int64_t channels = channels_of(a.shape);
  a.record_raw[record * channels + unit.channel] = __bfloat16_as_ushort(__float2bfloat16_rn(raw[0]));
  if (is_value) a.record_steps[record * (channels + 2 * a.shape.value_heads) + unit.channel] = value;
}

/// This thread's channel for all rows of the sequence.
__device__ inline void convolve_channel(const GatedDeltaArguments& a, const DeltaUnit& unit, int element) {
  DeltaScratch& s = delta_scratch();
#pragma unroll 8
  for (int index = 0; index < unit.sequence.row_count; ++index)
    s.mixed[index][element] = tile_value(a.mixed, unit.sequence.first_row + index, unit.channel);
  if (unit.chain) {
    float raw[kProgramTaps] = {unit.tail[2], unit.tail[1], unit.tail[0], 0.0F};
#pragma unroll 1
    for (int index = 0; index < unit.sequence.row_count; ++index) {
#pragma unroll
      for (int back = kProgramTaps - 1; back > 0; --back) raw[back] = raw[back - 1];
      raw[0] = s.mixed[index][element];
      convolve_row(a, unit, element, index, raw);
    }
    return;
  }
  // From the last row up: a row's inputs are its ancestors', which stand before it.
#pragma unroll 1
  for (int index = unit.sequence.row_count - 1; index >= 0; --index) {
    float raw[kProgramTaps];
    int at = index;
    int beyond = 0;  // tokens before the window's root
#pragma unroll
    for (int back = 0; back < kProgramTaps; ++back) {
      raw[back] = beyond == 0   ? s.mixed[at][element]
                  : beyond == 1 ? unit.tail[2]
                  : beyond == 2 ? unit.tail[1]
                                : unit.tail[0];
      if (at >= 0) at = s.parents[at];
      if (at < 0) beyond += 1;
    }
    convolve_row(a, unit, element, index, raw);
  }
}

__device__ inline void make_gates(const GatedDeltaArguments& a, const DeltaUnit& unit, int index) {
  DeltaScratch& s = delta_scratch();
  const int row = unit.sequence.first_row + index;
  const float shifted = tile_value(a.decay, row, unit.head) + a.decay_bias[unit.head];
  const float softplus = shifted > 20.0F ? shifted : log1pf(__expf(shifted));
  const float decay = __expf(-__expf(a.decay_log[unit.head]) * softplus);
  const float beta = 1.0F / (1.0F + __expf(-tile_value(a.beta, row, unit.head)));
  s.decay[index] = decay;
  s.beta[index] = beta;
  const int record = s.records[index];
  if (record < 0) return;
  const int64_t channels = channels_of(a.shape);
  float* to = a.record_steps + record * (channels + 2 * a.shape.value_heads) + channels + unit.head;
  to[0] = decay;
  to[a.shape.value_heads] = beta;
}

/// One warp: the norm of one row's query or key.
__device__ inline void norm_key(const GatedDeltaArguments& a, const DeltaUnit& unit, int index, int which, int lane) {
  DeltaScratch& s = delta_scratch();
  float* values = &s.mixed[index][which * kKeyDim + lane];
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kKeyDim / 32; ++i) sum = fmaf(values[i * 32], values[i * 32], sum);
  const auto width = static_cast<float>(kKeyDim);
  const float root = sqrtf(width);
  const float scale = rsqrtf(warp_sum(sum) / width + a.key_epsilon) / (which == 0 ? width : root);
  const int record = unit.keeps_keys ? s.records[index] : -1;
  const int key_head = unit.head / (a.shape.value_heads / a.shape.key_heads);
  float* to = a.record_steps + record * (channels_of(a.shape) + 2 * a.shape.value_heads) +
              (which * a.shape.key_heads + key_head) * kKeyDim + lane;
#pragma unroll
  for (int i = 0; i < kKeyDim / 32; ++i) {
    const float value = values[i * 32] * scale;
    values[i * 32] = value;
    if (record >= 0) to[i * 32] = value;
  }
}

/// Two value rows of the state, walked along the sequence's rows (a window's rows may branch).
__device__ inline void walk_rows(State (&states)[2], const GatedDeltaArguments& a, const DeltaUnit& unit,
                                 const Place (&places)[2]) {
  DeltaScratch& s = delta_scratch();
  int current = -1;
#pragma unroll 1
  for (int index = 0; index < unit.sequence.row_count; ++index) {
    const int parent = s.parents[index];
    int back = 0;  // rows of the path to walk before this one
    if (parent != current) {
#pragma unroll
      for (int i = 0; i < 2; ++i) load_state(states[i], a.states, a.shape, unit.sequence.state_slot, places[i]);
      for (int up = parent; up >= 0; up = s.parents[up]) ++back;
    }
#pragma unroll 1
    for (; back >= 0; --back) {
      int row = index;
      for (int j = 0; j < back; ++j) row = s.parents[row];
      const float* mixed = s.mixed[row];
      StepInputs in;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        in.query[i] = *reinterpret_cast<const float4*>(mixed + i * 32 + places[0].lane * 4);
        in.key[i] = *reinterpret_cast<const float4*>(mixed + kKeyDim + i * 32 + places[0].lane * 4);
      }
      in.decay = s.decay[row];
      in.beta = s.beta[row];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        in.value = mixed[kValueAt + places[i].row];
        step(states[i], in);
        const float value = dot(states[i].s, in.query);
        if (back == 0 && places[i].lane == 0) s.output[index][places[i].row] = value;
      }
    }
    current = index;
  }
}

constexpr int kGateParts = kMostDeltaValues / 32;  // a lane has values lane, lane + 32, ...

__device__ inline void load_gate(float (&gate)[kGateParts], const GatedDeltaArguments& a, const DeltaUnit& unit,
                                 int index, int lane) {
  const int dim = a.shape.value_dim;
#pragma unroll
  for (int i = 0; i < kGateParts; ++i)
    gate[i] =
        i * 32 < dim ? tile_value(a.gate, unit.sequence.first_row + index, unit.head * dim + i * 32 + lane) : 0.0F;
}

/// One warp: silu(z) * RMSNorm(o) of one row.
__device__ inline void gate_row(const GatedDeltaArguments& a, const DeltaUnit& unit, int index,
                                const float (&norm)[kGateParts], const float (&gate)[kGateParts], int lane) {
  constexpr int parts = kGateParts;
  const int dim = a.shape.value_dim;
  const int row = unit.sequence.first_row + index;
  const float* from = &delta_scratch().output[index][lane];
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < parts; ++i)
    if (i * 32 < dim) sum = fmaf(from[i * 32], from[i * 32], sum);
  const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(dim) + a.epsilon);
  auto* to = static_cast<__nv_bfloat16*>(a.output.data);
#pragma unroll
  for (int i = 0; i < parts; ++i)
    if (i * 32 < dim)
      to[tile_index(row, a.output.offset + unit.head * dim + i * 32 + lane, a.output.stride)] =
          __float2bfloat16_rn(silu(gate[i]) * (from[i * 32] * scale * norm[i]));
}

inline __device__ __noinline__ void run_gated_delta(int index) {
  const auto& a = operation_work<GatedDeltaArguments>(index);
  DeltaScratch& s = delta_scratch();
  const PlanView plan = forward_plan();
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int heads = a.shape.value_heads;
  const int ratio = heads / a.shape.key_heads;
  const int units = plan.header().sequences * heads;
  const int elements = 2 * kKeyDim + a.shape.value_dim;
  static_assert(kConsumers >= 2 * kKeyDim + kMostDeltaValues + kMostProgramRows);
  float norm[kGateParts];
#pragma unroll
  for (int i = 0; i < kGateParts; ++i) norm[i] = i * 32 < a.shape.value_dim ? a.norm[i * 32 + lane] : 0.0F;
  bool waited = false;
#pragma unroll 1
  for (int which = static_cast<int>(blockIdx.x); which < units; which += static_cast<int>(gridDim.x)) {
    DeltaUnit unit;
    unit.sequence = plan.sequences()[which / heads];
    unit.head = which % heads;
    unit.keeps_keys = unit.head % ratio == 0;
    const int rows = unit.sequence.row_count;
    // Plan, weights, states and tails were written before this forward began: their loads need not wait.
    if (thread < rows) {
      const int parent = plan.parents()[unit.sequence.first_row + thread];
      s.parents[thread] = parent < 0 ? -1 : parent - unit.sequence.first_row;
      s.records[thread] = plan.records()[unit.sequence.first_row + thread];
    }
    for (int i = 1; i < rows; ++i)
      unit.chain = unit.chain && plan.parents()[unit.sequence.first_row + i] == unit.sequence.first_row + i - 1;
    if (thread < elements) {
      unit.channel = thread < kKeyDim ? unit.head / ratio * kKeyDim + thread
                     : thread < kValueAt
                         ? (a.shape.key_heads + unit.head / ratio) * kKeyDim + thread - kKeyDim
                         : 2 * a.shape.key_heads * kKeyDim + unit.head * a.shape.value_dim + thread - kValueAt;
      unit.taps = *reinterpret_cast<const float4*>(a.convolution + static_cast<int64_t>(unit.channel) * kProgramTaps);
      const int64_t channels = channels_of(a.shape);
      const uint16_t* tail =
          a.tails + static_cast<int64_t>(unit.sequence.state_slot) * (kProgramTaps - 1) * channels + unit.channel;
#pragma unroll
      for (int i = 0; i < kProgramTaps - 1; ++i) unit.tail[i] = from_bits(tail[i * channels]);
    }
    Place place{};
    place.head = unit.head;
    place.key_head = unit.head / ratio;
    place.lane = thread % 8;
    place.row = thread / 8;
    Place places[2] = {place, place};
    places[1].row += 64;
    State states[2];
    const bool steps = warp < 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (places[i].row >= a.shape.value_dim) places[i].row = place.row % a.shape.value_dim;  // twice the same
      if (steps) load_state(states[i], a.states, a.shape, unit.sequence.state_slot, places[i]);
    }
    if (!waited)
      wait_for_phase(index);
    else
      consumers_sync();
    waited = true;
    float gate[kGateParts];
    if (warp < rows) load_gate(gate, a, unit, warp, lane);
    if (thread < elements)
      convolve_channel(a, unit, thread);
    else if (thread - elements < rows)
      make_gates(a, unit, thread - elements);
    consumers_sync();
#pragma unroll 1
    for (int task = warp; task < rows * 2; task += kConsumerWarps) norm_key(a, unit, task / 2, task % 2, lane);
    consumers_sync();
    if (steps) {
      walk_rows(states, a, unit, places);
      if (unit.sequence.keep_all != 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) store_state(states[i], a.states, a.shape, unit.sequence.state_slot, places[i]);
      }
    }
    consumers_sync();
#pragma unroll 1
    for (int row = warp; row < rows; row += kConsumerWarps) {
      if (row != warp) load_gate(gate, a, unit, row, lane);
      gate_row(a, unit, row, norm, gate, lane);
    }
  }
  if (!waited) wait_for_phase(index);
}

/// Sequences that keep all: the tail becomes the last kernel - 1 raw rows of [old tail, rows]. Eight channels a thread,
/// by thread blocks that have no share in the product beside, if there are such.
inline __device__ __noinline__ void run_tails(int index) {
  const auto& work = operation_work<TailsWork>(index);
  const GatedDeltaArguments& a = work.delta;
  const auto blocks = static_cast<int>(gridDim.x);
  const auto block = static_cast<int>(blockIdx.x);
  const int begin = piece_begin(work.passes, blocks, block);
  const bool idle = begin == piece_begin(work.passes, blocks, block + 1);
  const int idle_blocks = blocks - work.passes;
  const PlanView plan = forward_plan();
  wait_for_phase(index);
  if (idle_blocks > 0 && !idle) return;
  const int rank = idle_blocks > 0 ? block - begin : block;
  const int team = idle_blocks > 0 ? idle_blocks : blocks;
  const auto eights = static_cast<int>(channels_of(a.shape) / 8);
  const int all = plan.header().sequences * eights;
  constexpr int kept = kProgramTaps - 1;
#pragma unroll 1
  for (int i = rank * kConsumers + static_cast<int>(threadIdx.x); i < all; i += team * kConsumers) {
    const DeviceSequence sequence = plan.sequences()[i / eights];
    if (sequence.keep_all == 0) continue;
    auto* tail =
        reinterpret_cast<uint4*>(a.tails) + static_cast<int64_t>(sequence.state_slot) * kept * eights + i % eights;
    uint4 values[kept];
#pragma unroll
    for (int t = 0; t < kept; ++t) {
      const int from = sequence.row_count - kept + t;  // row of the sequence, negative: in the old tail
      values[t] = from < 0
                      ? tail[(kept + from) * eights]
                      : *reinterpret_cast<const uint4*>(
                            static_cast<const __nv_bfloat16*>(a.mixed.data) +
                            tile_index(sequence.first_row + from, a.mixed.offset + i % eights * 8, a.mixed.stride));
    }
#pragma unroll
    for (int t = 0; t < kept; ++t) tail[t * eights] = values[t];
  }
}

}  // namespace tensorfold::backend::cuda
