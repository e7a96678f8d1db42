// Mamba-2 (Nemotron 3.5 specification 3.1): a forward works out convolutions and time steps row by row, then walks
// every head through the rows in path order. Records of a window are the raw rows: mixed channels, then time steps.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/recurrence.h"
#include "backend/cpu/scalar_math.h"
#include "backend/keyed_sampling.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

const std::vector<float>& values_of(const Vector* vector) { return static_cast<const CpuVector*>(vector)->values; }

void check_widths(const Mamba2& a, const Mamba2Shape& shape) {
  check(a.mixed.width == shape.channels() && a.step.width == shape.heads, "a Mamba-2 step with rows of another width");
  check(a.gate.width == shape.values() && a.output.width == shape.values(),
        "a Mamba-2 step with rows of another width");
  check(a.convolution->size() == shape.channels() * shape.kernel && a.convolution_bias->size() == shape.channels(),
        "Mamba-2 convolution weights of another size");
  check(a.decay_log->size() == shape.heads && a.step_bias->size() == shape.heads && a.skip->size() == shape.heads &&
            a.norm->size() == shape.values(),
        "Mamba-2 weights of another size");
}

}  // namespace

/// What mamba_inputs makes of a step batch's raw rows.
struct CpuBackend::MambaInputs {
  RawRows raw;                ///< extras: time steps
  float* channels = nullptr;  ///< [rows][channels] convolved
  float* gates = nullptr;     ///< [rows][2][heads]: decay factors, then time steps
};

void CpuBackend::mamba_inputs(const Mamba2& a, const Mamba2Shape& shape, MambaInputs& inputs) {
  const int64_t rows = inputs.raw.count;
  inputs.channels = recurrent_.floats(rows * (shape.channels() + 2LL * shape.heads));
  inputs.gates = inputs.channels + rows * shape.channels();
  const float* taps = static_cast<const CpuVector*>(a.convolution)->transposed(shape.kernel);
  const float* bias = values_of(a.convolution_bias).data();
  threads_.run(rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      kernels_.convolve(&inputs.raw.history[static_cast<size_t>(row * shape.kernel)], taps, bias, shape.kernel,
                        shape.channels(), inputs.channels + row * shape.channels());
      float* decays = inputs.gates + row * 2 * shape.heads;
      for (int32_t head = 0; head < shape.heads; ++head) {
        const auto h = static_cast<size_t>(head);
        const float shifted = inputs.raw.extra_row(row, 0)[head] + values_of(a.step_bias)[h];
        const double step =
            std::clamp(portable_softplus(shifted), static_cast<double>(a.least_step), static_cast<double>(a.most_step));
        const double rate = keyed::exponential(static_cast<double>(values_of(a.decay_log)[h]));
        decays[head] = static_cast<float>(keyed::exponential(-rate * step));
        decays[shape.heads + head] = static_cast<float>(step);
      }
    }
  });
}

MambaStep CpuBackend::step_of(const Mamba2& a, const Mamba2Shape& shape, const MambaInputs& inputs, int64_t row,
                              int64_t head) {
  const float* channels = inputs.channels + row * shape.channels();
  const float* gates = inputs.gates + row * 2 * shape.heads;
  const int64_t group = head / (shape.heads / shape.groups);
  MambaStep step;
  step.input = channels + head * shape.head_dim;
  step.in = channels + shape.values() + group * shape.state;
  step.out = step.in + 1LL * shape.groups * shape.state;
  step.decay = gates[head];
  step.step = gates[shape.heads + head];
  step.skip = values_of(a.skip)[static_cast<size_t>(head)];
  step.head_dim = shape.head_dim;
  step.state_dim = shape.state;
  return step;
}

void CpuBackend::mamba2(const Plan& plan, const Mamba2& a) {
  check_running(plan);
  auto& cache = *static_cast<CpuCache*>(a.cache);
  const Mamba2Shape& shape = cache.state_shape<Mamba2Shape>(a.entry);
  check_widths(a, shape);
  check_slots(plan, cache);
  const int64_t rows = plan.rows();
  const int64_t head_floats = 1LL * shape.head_dim * shape.state;
  const int64_t state_floats = shape.heads * head_floats;
  const Tensor extras[] = {a.step};
  MambaInputs inputs;
  inputs.raw = take_raw_rows(plan, cache, a.entry, a.mixed, extras, shape.kernel, state_floats);
  cache.window(a.entry).step = a;
  mamba_inputs(a, shape, inputs);
  walk_states(plan, cache, a.entry, shape.heads, head_floats,
              [&](int64_t row, int64_t head, const float* source, float* state) {
                MambaStep step = step_of(a, shape, inputs, row, head);
                step.source = source;
                step.state = state;
                step.output = row_of(a.output, row) + head * shape.head_dim;
                kernels_.mamba_step(step);
              });
  const int64_t group_width = shape.values() / shape.groups;
  threads_.run(rows * shape.groups, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t offset = i % shape.groups * group_width;
      float* to = row_of(a.output, i / shape.groups) + offset;
      kernels_.multiply_silu(row_of(a.gate, i / shape.groups) + offset, group_width, to);
      kernels_.rms_norm(to, values_of(a.norm).data() + offset, group_width, a.epsilon, to);
    }
  });
  keep_tails(plan, cache, a.entry, a.mixed, shape.kernel, state_floats);
}

void CpuBackend::replay_mamba(const Mamba2& a, CpuCache& cache, int32_t entry, int32_t slot,
                              std::span<const float* const> records) {
  const Mamba2Shape& shape = cache.state_shape<Mamba2Shape>(entry);
  const int64_t head_floats = 1LL * shape.head_dim * shape.state;
  float* tail = cache.state(entry, slot) + shape.heads * head_floats;
  const int64_t widths[] = {shape.heads};
  MambaInputs inputs;
  inputs.raw = raw_rows_of(records, widths, tail, shape.kernel, shape.channels());
  mamba_inputs(a, shape, inputs);
  replay_states(cache, entry, slot, inputs.raw.count, shape.heads, head_floats,
                [&](int64_t row, int64_t head, const float* source, float* state) {
                  MambaStep step = step_of(a, shape, inputs, row, head);
                  step.out = nullptr;
                  step.source = source;
                  step.state = state;
                  kernels_.mamba_step(step);
                });
  update_tail(shape.kernel, shape.channels(), records, tail);
}

}  // namespace tensorfold::backend::cpu
