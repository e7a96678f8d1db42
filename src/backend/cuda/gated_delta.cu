#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/gated_delta_step.cuh"
#include "backend/cuda/launch.h"

namespace tensorfold::backend::cuda {
namespace {

/// One warp a (row, vector): query and key heads are convolved and normed, value heads convolved; the gates of a value
/// head ride with it.
__global__ void inputs_kernel(PlanView plan, const __grid_constant__ GatedDeltaArguments a) {
  allow_next_kernel();
  const int row = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int vector = static_cast<int>(blockIdx.y) * 4 + static_cast<int>(threadIdx.x) / 32;
  const GatedDeltaShape& shape = a.shape;
  const bool exists = row < plan.header().rows && vector < 2 * shape.key_heads + shape.value_heads;
  DeviceSequence sequence{};
  Taps taps{};
  int record = -1;
  if (exists) {
    sequence = plan.sequences()[plan.owner()[row]];
    taps = find_taps(plan.parents(), shape.kernel, row);
    record = plan.records()[row];
  }
  wait_for_previous_kernels();
  if (!exists) return;
  const bool is_value = vector >= 2 * shape.key_heads;
  const int dim = is_value ? shape.value_dim : shape.key_dim;
  const int first = is_value ? 2 * shape.key_heads * shape.key_dim + (vector - 2 * shape.key_heads) * shape.value_dim
                             : vector * shape.key_dim;
  const int64_t step_values = channels_of(shape) + 2 * shape.value_heads;
  float* to = a.steps + row * step_values;
  float* to_record = record >= 0 ? a.record_steps + record * step_values : nullptr;
  const auto write = [&](int64_t at, float value) {
    to[at] = value;
    if (to_record != nullptr) to_record[at] = value;
  };
  const int64_t channels = channels_of(shape);
  const uint16_t* tail = a.tails + static_cast<int64_t>(sequence.state_slot) * (shape.kernel - 1) * channels;
  float values[8];  // dim <= 256
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
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
    if (record >= 0) a.record_raw[record * channels + channel] = __bfloat16_as_ushort(__float2bfloat16_rn(raw[0]));
    values[i] = silu(value);
    sum = fmaf(values[i], values[i], sum);
  }
  float scale = 1.0F;
  if (!is_value) {
    const auto width = static_cast<float>(shape.key_dim);
    const float root = sqrtf(width);
    scale = rsqrtf(warp_sum(sum) / width + a.key_epsilon) / (vector < shape.key_heads ? width : root);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i * 32 < dim) write(first + i * 32 + lane, is_value ? values[i] : values[i] * scale);
  }
  if (is_value && lane == 0) {
    const int head = vector - 2 * shape.key_heads;
    const float shifted = a.decay.get(row, head) + a.decay_bias[head];
    const float softplus = shifted > 20.0F ? shifted : log1pf(__expf(shifted));
    write(channels_of(shape) + head, __expf(-__expf(a.decay_log[head]) * softplus));
    write(channels_of(shape) + shape.value_heads + head, 1.0F / (1.0F + __expf(-a.beta.get(row, head))));
  }
}

constexpr int kBlockRows = 16;
constexpr int kBlockTaps = 4;

/// What inputs_kernel does, for 16 rows and one vector of 128 channels: raw rows are read once, not once a tap.
__global__ void __launch_bounds__(kKeyDim)
    block_inputs_kernel(PlanView plan, const __grid_constant__ GatedDeltaArguments a) {
  __shared__ float raw[kBlockRows + kBlockTaps - 1][kKeyDim];
  __shared__ float mixed[kBlockRows][kKeyDim];
  __shared__ int sources[kBlockRows][kBlockTaps];
  __shared__ int records[kBlockRows];
  __shared__ int slots[kBlockRows];
  allow_next_kernel();
  const GatedDeltaShape& shape = a.shape;
  const auto thread = static_cast<int>(threadIdx.x);
  const int rows = plan.header().rows;
  const int first_row = static_cast<int>(blockIdx.x) * kBlockRows;
  const int count = rows - first_row < kBlockRows ? rows - first_row : kBlockRows;
  const auto vector = static_cast<int>(blockIdx.y);
  const int channel = vector * kKeyDim + thread;  // all vectors are 128 wide
  const int64_t channels = channels_of(shape);
  const int64_t step_values = channels + 2 * shape.value_heads;
  if (thread < count) {
    const Taps taps = find_taps(plan.parents(), kBlockTaps, first_row + thread);
#pragma unroll
    for (int back = 0; back < kBlockTaps; ++back) sources[thread][back] = taps.source[back];
    records[thread] = plan.records()[first_row + thread];
    slots[thread] = plan.sequences()[plan.owner()[first_row + thread]].state_slot;
  }
  const float4 taps = *reinterpret_cast<const float4*>(a.convolution + static_cast<int64_t>(channel) * kBlockTaps);
  wait_for_previous_kernels();
  if (count <= 0) return;
  const auto* from = static_cast<const __nv_bfloat16*>(a.mixed.data);
  const auto raw_value = [&](int row) {
    return __bfloat162float(from[tile_index(row, a.mixed.offset + channel, a.mixed.stride)]);
  };
#pragma unroll
  for (int i = 0; i < kBlockRows + kBlockTaps - 1; ++i) {
    const int row = first_row - (kBlockTaps - 1) + i;
    raw[i][thread] = row >= 0 && row < rows ? raw_value(row) : 0.0F;
  }
  __syncthreads();
  for (int i = 0; i < count; ++i) {
    float x[kBlockTaps];
#pragma unroll
    for (int back = 0; back < kBlockTaps; ++back) {
      const int source = sources[i][back];
      if (source >= 0 && source >= first_row - (kBlockTaps - 1))
        x[back] = raw[source - first_row + kBlockTaps - 1][thread];
      else if (source >= 0)
        x[back] = raw_value(source);
      else
        x[back] = from_bits(
            a.tails[(static_cast<int64_t>(slots[i]) * (kBlockTaps - 1) + (-1 - source)) * channels + channel]);
    }
    float value = 0.0F;
    value = fmaf(taps.x, x[3], value);
    value = fmaf(taps.y, x[2], value);
    value = fmaf(taps.z, x[1], value);
    value = fmaf(taps.w, x[0], value);
    if (records[i] >= 0)
      a.record_raw[records[i] * channels + channel] = __bfloat16_as_ushort(__float2bfloat16_rn(x[0]));
    mixed[i][thread] = silu(value);
  }
  __syncthreads();
  const int lane = thread % 32;
  const bool is_value = vector >= 2 * shape.key_heads;
  for (int i = thread / 32; i < count; i += kKeyDim / 32) {
    float values[kKeyDim / 32];
    float sum = 0.0F;
#pragma unroll
    for (int part = 0; part < kKeyDim / 32; ++part) {
      values[part] = mixed[i][part * 32 + lane];
      sum = fmaf(values[part], values[part], sum);
    }
    float scale = 1.0F;
    if (!is_value) {
      const auto width = static_cast<float>(shape.key_dim);
      const float root = sqrtf(width);
      scale = rsqrtf(warp_sum(sum) / width + a.key_epsilon) / (vector < shape.key_heads ? width : root);
    }
    float* to = a.steps + (first_row + i) * step_values + vector * kKeyDim + lane;
    float* to_record = a.record_steps + records[i] * step_values + vector * kKeyDim + lane;
#pragma unroll
    for (int part = 0; part < kKeyDim / 32; ++part) {
      const float value = is_value ? values[part] : values[part] * scale;
      to[part * 32] = value;
      if (records[i] >= 0) to_record[part * 32] = value;
    }
  }
  if (!is_value || thread >= count) return;
  const int head = vector - 2 * shape.key_heads;
  const int row = first_row + thread;
  const float shifted = a.decay.get(row, head) + a.decay_bias[head];
  const float softplus = shifted > 20.0F ? shifted : log1pf(__expf(shifted));
  const float decay = __expf(-__expf(a.decay_log[head]) * softplus);
  const float beta = 1.0F / (1.0F + __expf(-a.beta.get(row, head)));
  float* to = a.steps + row * step_values + channels + head;
  to[0] = decay;
  to[shape.value_heads] = beta;
  if (records[thread] >= 0) {
    float* to_record = a.record_steps + records[thread] * step_values + channels + head;
    to_record[0] = decay;
    to_record[shape.value_heads] = beta;
  }
}

__device__ inline StepInputs load_inputs(const float* row, const GatedDeltaShape& shape, const Place& place) {
  StepInputs in;
  const float* query = row + place.key_head * kKeyDim + place.lane * 4;
  const float* key = query + static_cast<int64_t>(shape.key_heads) * kKeyDim;
  const float* value = row + 2LL * shape.key_heads * kKeyDim + static_cast<int64_t>(place.head) * shape.value_dim;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    in.query[i] = *reinterpret_cast<const float4*>(query + i * 32);
    in.key[i] = *reinterpret_cast<const float4*>(key + i * 32);
  }
  in.value = value[place.row];
  in.decay = row[channels_of(shape) + place.head];
  in.beta = row[channels_of(shape) + shape.value_heads + place.head];
  return in;
}

/// Inputs of a stretch of rows in shared memory: query, key, this block's values, decay and beta.
constexpr int kStretch = 16;
template <int Rows>
constexpr int kInputValues = 2 * kKeyDim + Rows + 4;

__device__ inline void copy_words(float* to, const float* from, int bytes) {
  const uint32_t at = shared_address(to);
  if (bytes == 16)
    copy_16(at, from);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

/// A warp a row: three copies of a lane.
template <int Warps, int Rows>
__device__ inline void load_stretch(float (&to)[kStretch][kInputValues<Rows>], const float* steps, int64_t step_values,
                                    int first, int end, const GatedDeltaShape& shape, const Place& place, int part) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < kStretch; row += Warps) {
    if (first + row >= end) break;
    const float* from = steps + (first + row) * step_values;
    copy_words(&to[row][lane * 4], from + place.key_head * kKeyDim + lane * 4, 16);
    copy_words(&to[row][kKeyDim + lane * 4], from + (shape.key_heads + place.key_head) * kKeyDim + lane * 4, 16);
    if (lane < Rows / 4) {
      copy_words(&to[row][2 * kKeyDim + lane * 4],
                 from + 2 * shape.key_heads * kKeyDim + place.head * shape.value_dim + part * Rows + lane * 4, 16);
    } else if (lane < Rows / 4 + 2) {
      const int which = lane - Rows / 4;
      copy_words(&to[row][2 * kKeyDim + Rows + which],
                 from + channels_of(shape) + which * shape.value_heads + place.head, 4);
    }
  }
}

template <int Rows>
__device__ inline StepInputs read_inputs(const float (&row)[kInputValues<Rows>], const Place& place, int part) {
  StepInputs in;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    in.query[i] = *reinterpret_cast<const float4*>(&row[i * 32 + place.lane * 4]);
    in.key[i] = *reinterpret_cast<const float4*>(&row[kKeyDim + i * 32 + place.lane * 4]);
  }
  in.value = row[2 * kKeyDim + place.row - part * Rows];
  in.decay = row[2 * kKeyDim + Rows];
  in.beta = row[2 * kKeyDim + Rows + 1];
  return in;
}

/// The committed state, stepped along the path to `row`'s parent.
__device__ inline void replay_path(State& state, const GatedDeltaArguments& a, const int32_t* parents, int row,
                                   int slot, int64_t step_values, const Place& place) {
  load_state(state, a.states, a.shape, slot, place);
  int depth = 0;
  for (int up = parents[row]; up >= 0; up = parents[up]) ++depth;
  for (int i = depth; i > 0; --i) {
    int ancestor = row;
    for (int j = 0; j < i; ++j) ancestor = parents[ancestor];
    step(state, load_inputs(a.steps + ancestor * step_values, a.shape, place));
  }
}

/// What a lane has of its `Deep` value rows, and the outputs of the row before, whose sums over lanes ride with the
/// next row's: a step then waits for three exchanges between lanes instead of six.
template <int Deep>
struct DeepState {
  State rows[Deep];
  float pending[Deep] = {};
  float* pending_out = nullptr;
};

template <int Deep>
__device__ inline void write_pending(DeepState<Deep>& state, const float* sums, int row_step, int lane) {
  if (lane != 0 || state.pending_out == nullptr) return;
#pragma unroll
  for (int d = 0; d < Deep; ++d) state.pending_out[d * row_step] = sums[d];
}

/// One row. `values`: of the lane's value rows; `out`: of its first value row, the others `row_step` on.
template <int Deep>
__device__ inline void deep_step(DeepState<Deep>& state, StepInputs& in, const float (&values)[Deep], float* out,
                                 int row_step, int lane) {
  float sums[2 * Deep];
#pragma unroll
  for (int d = 0; d < Deep; ++d) {
#pragma unroll
    for (int i = 0; i < 16; ++i) state.rows[d].s[i] *= in.decay;
    sums[d] = state.pending[d];
    sums[Deep + d] = lane_dot(state.rows[d].s, in.key);
  }
  add_lanes(sums);
  write_pending<Deep>(state, sums, row_step, lane);
  state.pending_out = out;
#pragma unroll
  for (int d = 0; d < Deep; ++d) {
    in.value = values[d];
    update(state.rows[d], in, sums[Deep + d]);
    state.pending[d] = lane_dot(state.rows[d].s, in.query);
  }
}

/// Block: one sequence, one value head, 4 Deep value rows a warp, of which a lane has Deep (queries and keys are then
/// read from shared memory once for all of them); walks the sequence's rows in order.
template <int Warps, int Deep>
__global__ void __launch_bounds__(Warps * 32)
    steps_kernel(PlanView plan, const __grid_constant__ GatedDeltaArguments a) {
  constexpr int row_step = Warps * kRowsAWarp;
  constexpr int block_rows = row_step * Deep;
  __shared__ __align__(16) float inputs[2][kStretch][kInputValues<block_rows>];
  allow_next_kernel();
  const bool exists = static_cast<int>(blockIdx.x) < plan.header().sequences;
  const DeviceSequence sequence = exists ? plan.sequences()[blockIdx.x] : DeviceSequence{};
  const auto part = static_cast<int>(blockIdx.z);
  const Place place = find_place(a.shape, part, block_rows);
  const auto place_of = [&](int deep) {
    Place other = place;
    other.row += deep * row_step;
    return other;
  };
  const int64_t step_values = channels_of(a.shape) + 2 * a.shape.value_heads;
  const int32_t* parents = plan.parents();
  DeepState<Deep> state;
  // Committed states were written before this plan was uploaded: they need not wait for the previous kernel.
#pragma unroll
  for (int d = 0; d < Deep; ++d)
    if (exists) load_state(state.rows[d], a.states, a.shape, sequence.state_slot, place_of(d));
  wait_for_previous_kernels();
  if (!exists) return;
  int current = -1;
  const int end = sequence.first_row + sequence.row_count;
  const auto load = [&](float(&to)[kStretch][kInputValues<block_rows>], int first) {
    load_stretch<Warps, block_rows>(to, a.steps, step_values, first, end, a.shape, place, part);
    commit_copies();
  };
  load(inputs[0], sequence.first_row);
  for (int first = sequence.first_row, turn = 0; first < end; first += kStretch, turn ^= 1) {
    load(inputs[turn ^ 1], first + kStretch);
    wait_copies<1>();
    __syncthreads();
    const int last = first + kStretch < end ? first + kStretch : end;
    float* out =
        a.outputs + (static_cast<int64_t>(first) * a.shape.value_heads + place.head) * a.shape.value_dim + place.row;
    const int64_t out_step = static_cast<int64_t>(a.shape.value_heads) * a.shape.value_dim;
    const auto advance = [&](int row) {
      const float(&from)[kInputValues<block_rows>] = inputs[turn][row - first];
      StepInputs in = read_inputs<block_rows>(from, place, part);
      float values[Deep];
#pragma unroll
      for (int d = 0; d < Deep; ++d) values[d] = from[2 * kKeyDim + place.row - part * block_rows + d * row_step];
      deep_step<Deep>(state, in, values, out, row_step, place.lane);
      out += out_step;
    };
    if (sequence.keep_all != 0) {
#pragma unroll(Deep > 1 ? 4 : 2)
      for (int row = first; row < last; ++row) advance(row);
    } else {
      for (int row = first; row < last; ++row) {
        if (parents[row] != current) {
#pragma unroll
          for (int d = 0; d < Deep; ++d)
            replay_path(state.rows[d], a, parents, row, sequence.state_slot, step_values, place_of(d));
        }
        advance(row);
        current = row;
      }
    }
    __syncthreads();
  }
  add_lanes(state.pending);
  write_pending<Deep>(state, state.pending, row_step, place.lane);
#pragma unroll
  for (int d = 0; d < Deep; ++d)
    if (sequence.keep_all != 0) store_state(state.rows[d], a.states, a.shape, sequence.state_slot, place_of(d));
}

/// One warp a (row, value head): silu(z) * RMSNorm(o). Rows that keep all also move the convolution's tail.
__global__ void outputs_kernel(PlanView plan, const __grid_constant__ GatedDeltaArguments a) {
  allow_next_kernel();
  const int row = static_cast<int>(blockIdx.x);
  const bool exists = row < plan.header().rows;
  wait_for_previous_kernels();
  if (!exists) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.y) * 4 + static_cast<int>(threadIdx.x) / 32;
  if (head >= a.shape.value_heads) return;
  const int dim = a.shape.value_dim;
  const float* from = a.outputs + (static_cast<int64_t>(row) * a.shape.value_heads + head) * dim;
  float sum = 0.0F;
  for (int i = lane; i < dim; i += 32) sum = fmaf(from[i], from[i], sum);
  const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(dim) + a.epsilon);
  for (int i = lane; i < dim; i += 32) {
    const float gate = a.gate.get(row, head * dim + i);
    a.output.set(row, head * dim + i, silu(gate) * (from[i] * scale * a.norm[i]));
  }
}

/// Sequences that keep all: the tail becomes the last kernel - 1 raw rows of [old tail, rows].
__global__ void tails_kernel(PlanView plan, const __grid_constant__ GatedDeltaArguments a) {
  allow_next_kernel();
  wait_for_previous_kernels();
  if (static_cast<int>(blockIdx.x) >= plan.header().sequences) return;
  const DeviceSequence sequence = plan.sequences()[blockIdx.x];
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  const int64_t channels = channels_of(a.shape);
  if (channel >= channels || sequence.keep_all == 0) return;
  const int kept = a.shape.kernel - 1;
  uint16_t* tail = a.tails + static_cast<int64_t>(sequence.state_slot) * kept * channels + channel;
  for (int i = 0; i < kept; ++i) {
    const int from = sequence.row_count - kept + i;  // row of the sequence, negative: in the old tail
    tail[i * channels] =
        from < 0 ? tail[(kept + from) * channels]
                 : __bfloat16_as_ushort(__float2bfloat16_rn(a.mixed.get(sequence.first_row + from, channel)));
  }
}

__global__ void __launch_bounds__(kWarpsAStep * 32)
    replay_kernel(const KeptSequence* kept, const int32_t* records, GatedDeltaShape shape, const DeltaLayer* layers) {
  allow_next_kernel();
  wait_for_previous_kernels();
  const int parts = shape.value_dim / kRowsABlock;
  const DeltaLayer layer = layers[blockIdx.z / parts];
  const KeptSequence sequence = kept[blockIdx.x];
  if (sequence.count == 0) return;
  const Place place = find_place(shape, static_cast<int>(blockIdx.z) % parts, kRowsABlock);
  const int64_t step_values = channels_of(shape) + 2 * shape.value_heads;
  State state;
  load_state(state, layer.states, shape, sequence.state_slot, place);
  for (int i = 0; i < sequence.count; ++i)
    step(state, load_inputs(layer.record_steps + records[sequence.begin + i] * step_values, shape, place));
  store_state(state, layer.states, shape, sequence.state_slot, place);
}

__global__ void replay_tails_kernel(const KeptSequence* kept, const int32_t* records, GatedDeltaShape shape,
                                    const DeltaLayer* layers) {
  allow_next_kernel();
  wait_for_previous_kernels();
  const DeltaLayer layer = layers[blockIdx.z];
  const KeptSequence sequence = kept[blockIdx.x];
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  const int64_t channels = channels_of(shape);
  if (channel >= channels || sequence.count == 0) return;
  const int rows = shape.kernel - 1;
  uint16_t* tail = layer.tails + static_cast<int64_t>(sequence.state_slot) * rows * channels + channel;
  for (int i = 0; i < rows; ++i) {
    const int from = sequence.count - rows + i;
    tail[i * channels] = from < 0 ? tail[(rows + from) * channels]
                                  : layer.record_raw[records[sequence.begin + from] * channels + channel];
  }
}

unsigned blocks_of(int64_t count, int a_block) { return static_cast<unsigned>((count + a_block - 1) / a_block); }

}  // namespace

bool gated_delta_supports(const GatedDeltaShape& shape) {
  return shape.key_dim == kKeyDim && shape.kernel <= kMostTaps && shape.value_dim % kRowsABlock == 0 &&
         shape.value_dim <= 256;
}

void launch_gated_delta(const int32_t* plan, int rows, int sequences, const GatedDeltaArguments& arguments,
                        cudaStream_t stream) {
  const GatedDeltaShape& shape = arguments.shape;
  const PlanView view{plan};
  const auto all_rows = static_cast<unsigned>(rows);
  const auto all_sequences = static_cast<unsigned>(sequences);
  if (rows > 2 * kBlockRows && shape.value_dim == kKeyDim && shape.kernel == kBlockTaps && arguments.mixed.bf16 != 0)
    launch(block_inputs_kernel,
           dim3(blocks_of(rows, kBlockRows), static_cast<unsigned>(2 * shape.key_heads + shape.value_heads)),
           dim3(kKeyDim), 0, stream, view, arguments);
  else
    launch(inputs_kernel, dim3(all_rows, blocks_of(2 * shape.key_heads + shape.value_heads, 4)), dim3(128), 0, stream,
           view, arguments);
  // Small blocks share the multiprocessors evenly where there are few; larger ones keep more warps where there are
  // many.
  const auto step = [&](auto kernel, int warps, int deep) {
    launch(kernel,
           dim3(all_sequences, static_cast<unsigned>(shape.value_heads),
                blocks_of(shape.value_dim, warps * deep * kRowsAWarp)),
           dim3(static_cast<unsigned>(warps) * 32), 0, stream, view, arguments);
  };
  if (sequences > 2)
    step(steps_kernel<8, 1>, 8, 1);
  else
    step(steps_kernel<2, 2>, 2, 2);
  launch(outputs_kernel, dim3(all_rows, blocks_of(shape.value_heads, 4)), dim3(128), 0, stream, view, arguments);
  launch(tails_kernel, dim3(all_sequences, blocks_of(channels_of(shape), 256)), dim3(256), 0, stream, view, arguments);
}

void launch_gated_delta_commit(const KeptSequence* kept, int sequences, const int32_t* records,
                               const GatedDeltaShape& shape, const DeltaLayer* layers, int layer_count,
                               cudaStream_t stream) {
  const auto all = static_cast<unsigned>(sequences);
  const auto count = static_cast<unsigned>(layer_count);
  launch(replay_kernel,
         dim3(all, static_cast<unsigned>(shape.value_heads), count * blocks_of(shape.value_dim, kRowsABlock)),
         dim3(kWarpsAStep * 32), 0, stream, kept, records, shape, layers);
  launch(replay_tails_kernel, dim3(all, blocks_of(channels_of(shape), 256), count), dim3(256), 0, stream, kept, records,
         shape, layers);
}

}  // namespace tensorfold::backend::cuda
