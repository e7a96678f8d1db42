// The gated delta rule (Qwen3.8-27B specification A.5). A forward works out the step's inputs row by row, then walks
// every value head through the rows in path order; a commit does the same with the rows that were kept. Records of a
// window are the raw rows: mixed channels, then beta, then decay inputs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/recurrence.h"
#include "backend/cpu/scalar_math.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

int64_t record_width(const GatedDeltaShape& shape) { return shape.channels() + 2LL * shape.value_heads; }

}  // namespace

/// The rows of one step batch, raw, and what delta_inputs makes of them.
struct CpuBackend::DeltaInputs {
  int64_t rows = 0;
  const float* const* raw = nullptr;    ///< [rows][kernel] raw channel rows, oldest first
  const float* const* beta = nullptr;   ///< [rows] raw beta rows
  const float* const* decay = nullptr;  ///< [rows] raw decay rows
  float* channels = nullptr;            ///< [rows][channels] convolved; queries and keys normalised
  float* gates = nullptr;               ///< [rows][2][value_heads]: decay factors, then betas
};

void CpuBackend::delta_inputs(const GatedDelta& a, const GatedDeltaShape& shape, DeltaInputs& inputs) {
  const float* taps = static_cast<const CpuVector*>(a.convolution)->transposed(shape.kernel);
  const auto& decay_log = static_cast<const CpuVector*>(a.decay_log)->values;
  const auto& decay_bias = static_cast<const CpuVector*>(a.decay_bias)->values;
  const double root = std::sqrt(static_cast<double>(shape.key_dim));
  const auto query_scale = static_cast<float>(1.0 / static_cast<double>(shape.key_dim));
  const auto key_scale = static_cast<float>(1.0 / root);
  threads_.run(inputs.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* channels = inputs.channels + row * shape.channels();
      kernels_.convolve(inputs.raw + row * shape.kernel, taps, nullptr, shape.kernel, shape.channels(), channels);
      for (int64_t head = 0; head < 2LL * shape.key_heads; ++head) {
        float* values = channels + head * shape.key_dim;
        kernels_.rms_norm(values, nullptr, shape.key_dim, a.key_epsilon, values);
        kernels_.scale(head < shape.key_heads ? query_scale : key_scale, shape.key_dim, values);
      }
      float* decays = inputs.gates + row * 2 * shape.value_heads;
      float* betas = decays + shape.value_heads;
      for (int32_t head = 0; head < shape.value_heads; ++head) {
        const auto h = static_cast<size_t>(head);
        const float shifted = inputs.decay[row][head] + decay_bias[h];
        decays[head] = static_cast<float>(portable_decay(decay_log[h], shifted));
        betas[head] = static_cast<float>(portable_sigmoid(inputs.beta[row][head]));
      }
    }
  });
}

void CpuBackend::gated_delta(const Plan& plan, const GatedDelta& a) {
  check_running(plan);
  auto& cache = *static_cast<CpuCache*>(a.cache);
  const GatedDeltaShape& shape = cache.state_shape<GatedDeltaShape>(a.entry);
  const int64_t rows = plan.rows();
  const int64_t value_width = 1LL * shape.value_heads * shape.value_dim;
  check(a.mixed.width == shape.channels() && a.gate.width == value_width && a.output.width == value_width,
        "a gated delta step with rows of another width");
  check(a.beta.width == shape.value_heads && a.decay.width == shape.value_heads, "gates of another width");
  check_slots(plan, cache);

  const int64_t state_floats = value_width * shape.key_dim;
  std::vector<const float*> raw(static_cast<size_t>(rows * shape.kernel));
  std::vector<const float*> beta(static_cast<size_t>(rows));
  std::vector<const float*> decay(static_cast<size_t>(rows));
  WindowRecord& record = cache.open_window(a.entry, view_.window_rows, record_width(shape), view_.forward);
  record.step = a;
  for (int32_t row = 0; row < rows; ++row) {
    const auto r = static_cast<size_t>(row);
    const float* tail =
        cache.state(a.entry, plan.sequences[static_cast<size_t>(plan.owner[r])].state_slot) + state_floats;
    find_history(plan, row, a.mixed, tail, shape.kernel, &raw[r * static_cast<size_t>(shape.kernel)]);
    beta[r] = row_of(a.beta, row);
    decay[r] = row_of(a.decay, row);
    if (view_.window_index[r] >= 0) {
      float* to = record.rows.data() + view_.window_index[r] * record_width(shape);
      std::memcpy(to, row_of(a.mixed, row), static_cast<size_t>(shape.channels()) * sizeof(float));
      std::memcpy(to + shape.channels(), beta[r], static_cast<size_t>(shape.value_heads) * sizeof(float));
      std::memcpy(to + shape.channels() + shape.value_heads, decay[r],
                  static_cast<size_t>(shape.value_heads) * sizeof(float));
    }
  }
  DeltaInputs inputs{rows, raw.data(), beta.data(), decay.data(), nullptr, nullptr};
  inputs.channels = recurrent_.floats(rows * (shape.channels() + 2 * shape.value_heads));
  inputs.gates = inputs.channels + rows * shape.channels();
  delta_inputs(a, shape, inputs);
  walk_states(plan, cache, a.entry, shape.value_heads, 1LL * shape.value_dim * shape.key_dim,
              [&](int64_t row, int64_t head, const float* source, float* state) {
                DeltaStep step = step_of(shape, inputs, row, head);
                step.source = source;
                step.state = state;
                step.output = row_of(a.output, row) + head * shape.value_dim;
                kernels_.delta_step(step);
              });

  const float* norm = static_cast<const CpuVector*>(a.norm)->values.data();
  threads_.run(rows * shape.value_heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t offset = i % shape.value_heads * shape.value_dim;
      float* to = row_of(a.output, i / shape.value_heads) + offset;
      kernels_.rms_norm(to, norm, shape.value_dim, a.epsilon, to);
      const auto apply_gate = a.sigmoid_gate ? kernels_.multiply_sigmoid : kernels_.multiply_silu;
      apply_gate(row_of(a.gate, i / shape.value_heads) + offset, shape.value_dim, to);
    }
  });
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
  const auto rows = static_cast<int64_t>(records.size());
  float* state = cache.state(entry, slot);
  float* tail = state + 1LL * shape.value_heads * shape.value_dim * shape.key_dim;
  std::vector<const float*> raw(records.size() * static_cast<size_t>(shape.kernel));
  std::vector<const float*> beta;
  std::vector<const float*> decay;
  for (int64_t row = 0; row < rows; ++row) {
    find_kept_history(records, row, tail, shape.kernel, shape.channels(),
                      &raw[static_cast<size_t>(row * shape.kernel)]);
    beta.push_back(records[static_cast<size_t>(row)] + shape.channels());
    decay.push_back(beta.back() + shape.value_heads);
  }
  DeltaInputs inputs{rows, raw.data(), beta.data(), decay.data(), nullptr, nullptr};
  inputs.channels = recurrent_.floats(rows * (shape.channels() + 2 * shape.value_heads));
  inputs.gates = inputs.channels + rows * shape.channels();
  delta_inputs(a, shape, inputs);
  threads_.run(shape.value_heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t row = 0; row < rows; ++row) {
        DeltaStep step = step_of(shape, inputs, row, head);
        step.query = nullptr;
        step.state = state + head * shape.value_dim * shape.key_dim;
        step.source = step.state;
        kernels_.delta_step(step);
      }
    }
  });
  update_tail(shape.kernel, shape.channels(), records, tail);
}

}  // namespace tensorfold::backend::cpu
