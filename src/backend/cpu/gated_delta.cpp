// The gated delta rule (Qwen3.8-27B specification A.5). A forward works out the step's inputs row by row, then walks
// every value head through the rows in path order; a commit does the same with the rows that were kept. Records of a
// window are the raw rows: mixed channels, then beta, then decay inputs.
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/recurrence.h"
#include "backend/cpu/scalar_math.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {

/// What delta_inputs makes of a step batch's raw rows.
struct CpuBackend::DeltaInputs {
  RawRows raw;                ///< extras: beta, decay inputs
  float* channels = nullptr;  ///< [rows][channels] convolved; queries and keys normalised
  float* gates = nullptr;     ///< [rows][2][value_heads]: decay factors, then betas
};

void CpuBackend::delta_inputs(const GatedDelta& a, const GatedDeltaShape& shape, DeltaInputs& inputs) {
  const int64_t rows = inputs.raw.count;
  inputs.channels = recurrent_.floats(rows * (shape.channels() + 2 * shape.value_heads));
  inputs.gates = inputs.channels + rows * shape.channels();
  const float* taps = static_cast<const CpuVector*>(a.convolution)->transposed(shape.kernel);
  const auto& decay_log = static_cast<const CpuVector*>(a.decay_log)->values;
  const auto& decay_bias = static_cast<const CpuVector*>(a.decay_bias)->values;
  threads_.run(rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* channels = inputs.channels + row * shape.channels();
      kernels_.convolve(&inputs.raw.history[static_cast<size_t>(row * shape.kernel)], taps, nullptr, shape.kernel,
                        shape.channels(), channels);
      normalise_delta_heads(shape.key_heads, shape.key_dim, a.key_epsilon, channels);
      const float* beta = inputs.raw.extra_row(row, 0);
      const float* decay = inputs.raw.extra_row(row, 1);
      float* decays = inputs.gates + row * 2 * shape.value_heads;
      float* betas = decays + shape.value_heads;
      for (int32_t head = 0; head < shape.value_heads; ++head) {
        const auto h = static_cast<size_t>(head);
        const float shifted = decay[head] + decay_bias[h];
        decays[head] = static_cast<float>(portable_decay(decay_log[h], shifted));
        betas[head] = static_cast<float>(portable_sigmoid(beta[head]));
      }
    }
  });
}

void CpuBackend::gated_delta(const Plan& plan, const GatedDelta& a) {
  check_running(plan);
  auto& cache = *static_cast<CpuCache*>(a.cache);
  const GatedDeltaShape& shape = cache.state_shape<GatedDeltaShape>(a.entry);
  const int64_t value_width = 1LL * shape.value_heads * shape.value_dim;
  check(a.mixed.width == shape.channels() && a.gate.width == value_width && a.output.width == value_width,
        "a gated delta step with rows of another width");
  check(a.beta.width == shape.value_heads && a.decay.width == shape.value_heads, "gates of another width");
  check_slots(plan, cache);
  const int64_t state_floats = value_width * shape.key_dim;
  const Tensor extras[] = {a.beta, a.decay};
  DeltaInputs inputs;
  inputs.raw = take_raw_rows(plan, cache, a.entry, a.mixed, extras, shape.kernel, state_floats);
  cache.window(a.entry).step = a;
  delta_inputs(a, shape, inputs);
  walk_states(plan, cache, a.entry, shape.value_heads, 1LL * shape.value_dim * shape.key_dim,
              [&](int64_t row, int64_t head, const float* source, float* state) {
                DeltaStep step = step_of(shape, inputs, row, head);
                step.source = source;
                step.state = state;
                step.output = row_of(a.output, row) + head * shape.value_dim;
                kernels_.delta_step(step);
              });
  norm_and_gate_heads(plan, a.output, a.gate, a.norm, a.epsilon, shape.value_heads, a.sigmoid_gate);
  keep_tails(plan, cache, a.entry, a.mixed, shape.kernel, state_floats);
}

DeltaStep CpuBackend::step_of(const GatedDeltaShape& shape, const DeltaInputs& inputs, int64_t row, int64_t head) {
  const float* channels = inputs.channels + row * shape.channels();
  const float* gates = inputs.gates + row * 2 * shape.value_heads;
  const int64_t key_head = head / (shape.value_heads / shape.key_heads);
  DeltaStep step;
  step.query = channels + key_head * shape.key_dim;
  step.key = step.query + 1LL * shape.key_heads * shape.key_dim;
  step.value = channels + 2LL * shape.key_heads * shape.key_dim + head * shape.value_dim;
  step.decay = gates[head];
  step.beta = gates[shape.value_heads + head];
  step.key_dim = shape.key_dim;
  step.value_dim = shape.value_dim;
  return step;
}

void CpuBackend::replay_delta(const GatedDelta& a, CpuCache& cache, int32_t entry, int32_t slot,
                              std::span<const float* const> records) {
  const GatedDeltaShape& shape = cache.state_shape<GatedDeltaShape>(entry);
  const int64_t head_floats = 1LL * shape.value_dim * shape.key_dim;
  float* tail = cache.state(entry, slot) + shape.value_heads * head_floats;
  const int64_t widths[] = {shape.value_heads, shape.value_heads};
  DeltaInputs inputs;
  inputs.raw = raw_rows_of(records, widths, tail, shape.kernel, shape.channels());
  delta_inputs(a, shape, inputs);
  replay_states(cache, entry, slot, inputs.raw.count, shape.value_heads, head_floats,
                [&](int64_t row, int64_t head, const float* source, float* state) {
                  DeltaStep step = step_of(shape, inputs, row, head);
                  step.query = nullptr;
                  step.source = source;
                  step.state = state;
                  kernels_.delta_step(step);
                });
  update_tail(shape.kernel, shape.channels(), records, tail);
}

}  // namespace tensorfold::backend::cpu
