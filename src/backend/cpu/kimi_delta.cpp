// Kimi Delta Attention (GLM-5.3-Flash specification 6.3): the gated delta rule with a decay a key channel. Records of a
// window are the raw rows: mixed channels, then beta, then decay inputs.
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/recurrence.h"
#include "backend/cpu/scalar_math.h"
#include "backend/keyed_sampling.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

const std::vector<float>& values_of(const Vector* vector) { return static_cast<const CpuVector*>(vector)->values; }

void check_widths(const KimiDelta& a, const KimiDeltaShape& shape) {
  check(a.mixed.width == shape.channels() && a.beta.width == shape.heads && a.decay.width == shape.values(),
        "a Kimi delta step with rows of another width");
  check(a.gate.width == shape.values() && a.output.width == shape.values(),
        "a Kimi delta step with rows of another width");
  check(a.convolution->size() == shape.channels() * shape.kernel && a.decay_log->size() == shape.heads &&
            a.decay_bias->size() == shape.values() && a.norm->size() == shape.dim,
        "Kimi delta weights of another size");
  check(a.lower_bound < 0.0F, "a lower bound of log decays below zero");
}

}  // namespace

/// What kimi_inputs makes of a step batch's raw rows.
struct CpuBackend::KimiInputs {
  RawRows raw;                ///< extras: beta, decay inputs
  float* channels = nullptr;  ///< [rows][channels] convolved; queries and keys normalised
  float* decays = nullptr;    ///< [rows][heads][dim]
  float* betas = nullptr;     ///< [rows][heads]
};

void CpuBackend::kimi_inputs(const KimiDelta& a, const KimiDeltaShape& shape, KimiInputs& inputs) {
  const int64_t rows = inputs.raw.count;
  inputs.channels = recurrent_.floats(rows * (shape.channels() + shape.values() + shape.heads));
  inputs.decays = inputs.channels + rows * shape.channels();
  inputs.betas = inputs.decays + rows * shape.values();
  const float* taps = static_cast<const CpuVector*>(a.convolution)->transposed(shape.kernel);
  threads_.run(rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* channels = inputs.channels + row * shape.channels();
      kernels_.convolve(&inputs.raw.history[static_cast<size_t>(row * shape.kernel)], taps, nullptr, shape.kernel,
                        shape.channels(), channels);
      normalise_delta_heads(shape.heads, shape.dim, a.key_epsilon, channels);
      for (int64_t head = 0; head < shape.heads; ++head) {
        const auto h = static_cast<size_t>(head);
        const auto rate = static_cast<float>(keyed::exponential(static_cast<double>(values_of(a.decay_log)[h])));
        const int64_t offset = head * shape.dim;
        kernels_.channel_decay(inputs.raw.extra_row(row, 1) + offset, values_of(a.decay_bias).data() + offset, rate,
                               a.lower_bound, shape.dim, inputs.decays + row * shape.values() + offset);
        inputs.betas[row * shape.heads + head] =
            static_cast<float>(portable_sigmoid(static_cast<double>(inputs.raw.extra_row(row, 0)[head])));
      }
    }
  });
}

DeltaStep CpuBackend::step_of(const KimiDeltaShape& shape, const KimiInputs& inputs, int64_t row, int64_t head) {
  DeltaStep step;
  step.query = inputs.channels + row * shape.channels() + head * shape.dim;
  step.key = step.query + shape.values();
  step.value = step.key + shape.values();
  step.decays = inputs.decays + row * shape.values() + head * shape.dim;
  step.beta = inputs.betas[row * shape.heads + head];
  step.key_dim = shape.dim;
  step.value_dim = shape.dim;
  return step;
}

void CpuBackend::kimi_delta(const Plan& plan, const KimiDelta& a) {
  check_running(plan);
  auto& cache = *static_cast<CpuCache*>(a.cache);
  const KimiDeltaShape& shape = cache.state_shape<KimiDeltaShape>(a.entry);
  check_widths(a, shape);
  check_slots(plan, cache);
  const int64_t head_floats = 1LL * shape.dim * shape.dim;
  const int64_t state_floats = shape.heads * head_floats;
  const Tensor extras[] = {a.beta, a.decay};
  KimiInputs inputs;
  inputs.raw = take_raw_rows(plan, cache, a.entry, a.mixed, extras, shape.kernel, state_floats);
  cache.window(a.entry).step = a;
  kimi_inputs(a, shape, inputs);
  walk_states(plan, cache, a.entry, shape.heads, head_floats,
              [&](int64_t row, int64_t head, const float* source, float* state) {
                DeltaStep step = step_of(shape, inputs, row, head);
                step.source = source;
                step.state = state;
                step.output = row_of(a.output, row) + head * shape.dim;
                kernels_.delta_step(step);
              });
  norm_and_gate_heads(plan, a.output, a.gate, a.norm, a.epsilon, shape.heads, true);
  keep_tails(plan, cache, a.entry, a.mixed, shape.kernel, state_floats);
}

void CpuBackend::replay_kimi(const KimiDelta& a, CpuCache& cache, int32_t entry, int32_t slot,
                             std::span<const float* const> records) {
  const KimiDeltaShape& shape = cache.state_shape<KimiDeltaShape>(entry);
  const int64_t head_floats = 1LL * shape.dim * shape.dim;
  float* tail = cache.state(entry, slot) + shape.heads * head_floats;
  const int64_t widths[] = {shape.heads, shape.values()};
  KimiInputs inputs;
  inputs.raw = raw_rows_of(records, widths, tail, shape.kernel, shape.channels());
  kimi_inputs(a, shape, inputs);
  replay_states(cache, entry, slot, inputs.raw.count, shape.heads, head_floats,
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
