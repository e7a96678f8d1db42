// The gated delta rule (Qwen3.8-27B specification A.5). A forward works out the step's inputs row by row, then walks
// every value head through the rows in path order; commit does the same with the rows that were kept. Records of a
// window are the raw rows: mixed channels, then beta, then decay inputs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/scalar_math.h"
#include "base/error.h"

namespace tensorfold::backend::cpu {
namespace {

int64_t record_width(const GatedDeltaShape& shape) { return shape.channels() + 2LL * shape.value_heads; }

/// Slides the raw rows of the convolution: to[j] = the last kernel-1 of (old rows, new rows).
void update_tail(const GatedDeltaShape& shape, std::span<const float* const> fresh, float* tail) {
  const int64_t kept = shape.kernel - 1;
  const auto count = static_cast<int64_t>(fresh.size());
  const auto bytes = static_cast<size_t>(shape.channels()) * sizeof(float);
  for (int64_t j = 0; j < kept; ++j) {
    const int64_t from = j + count - kept;  // index into the fresh rows; negative: an old row
    float* to = tail + j * shape.channels();
    if (from >= 0) {
      std::memcpy(to, fresh[static_cast<size_t>(from)], bytes);
    } else if (count > 0) {
      std::memmove(to, tail + (j + count) * shape.channels(), bytes);
    }
  }
}

/// Where each row's state comes from and goes to: a plan for one worker's buffers, the same for every head.
struct StateRoute {
  int32_t source = -1;  ///< buffer; -1: the committed state
  int32_t target = 0;
};

std::vector<StateRoute> route_states(const Plan& plan, const SequenceRows& sequence, int32_t& buffers) {
  std::vector<StateRoute> routes(static_cast<size_t>(sequence.row_count));
  std::vector<int32_t> children(routes.size(), 0);
  const auto parent_of = [&](size_t i) {
    const int32_t parent = plan.parents[static_cast<size_t>(sequence.first_row) + i];
    return parent < 0 ? -1 : parent - sequence.first_row;
  };
  for (size_t i = 0; i < routes.size(); ++i) {
    if (parent_of(i) >= 0) ++children[static_cast<size_t>(parent_of(i))];
  }
  std::vector<int32_t> left = children;
  std::vector<int32_t> free;
  buffers = 0;
  for (size_t i = 0; i < routes.size(); ++i) {
    const int32_t parent = parent_of(i);
    StateRoute& route = routes[i];
    if (parent >= 0) route.source = routes[static_cast<size_t>(parent)].target;
    if (parent >= 0 && --left[static_cast<size_t>(parent)] == 0) {
      route.target = route.source;  // the last child takes the buffer over
    } else if (!free.empty()) {
      route.target = free.back();
      free.pop_back();
    } else {
      route.target = buffers++;
    }
    if (children[i] == 0) free.push_back(route.target);
  }
  return routes;
}

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
      kernels_.convolve(inputs.raw + row * shape.kernel, taps, shape.kernel, shape.channels(), channels);
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
  const GatedDeltaShape& shape = cache.gated_delta(a.entry);
  const int64_t rows = plan.rows();
  const int64_t value_width = 1LL * shape.value_heads * shape.value_dim;
  check(a.mixed.width == shape.channels() && a.gate.width == value_width && a.output.width == value_width,
        "a gated delta step with rows of another width");
  check(a.beta.width == shape.value_heads && a.decay.width == shape.value_heads, "gates of another width");
  for (const SequenceRows& sequence : plan.sequences)
    check(sequence.state_slot >= 0 && sequence.state_slot < cache.size().state_slots, "a state slot outside the cache");

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
    int32_t at = row;
    int64_t above = shape.kernel - 2;  // index into the tail once the path is used up
    for (int64_t j = shape.kernel - 1; j >= 0; --j) {
      raw[r * static_cast<size_t>(shape.kernel) + static_cast<size_t>(j)] =
          at >= 0 ? row_of(a.mixed, at) : tail + (above--) * shape.channels();
      if (at >= 0) at = plan.parents[static_cast<size_t>(at)];
    }
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
  inputs.channels = delta_.floats(rows * (shape.channels() + 2 * shape.value_heads));
  inputs.gates = inputs.channels + rows * shape.channels();
  delta_inputs(a, shape, inputs);
  walk_states(plan, a, shape, inputs);

  const float* norm = static_cast<const CpuVector*>(a.norm)->values.data();
  threads_.run(rows * shape.value_heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t offset = i % shape.value_heads * shape.value_dim;
      float* to = row_of(a.output, i / shape.value_heads) + offset;
      kernels_.rms_norm(to, norm, shape.value_dim, a.epsilon, to);
      kernels_.multiply_silu(row_of(a.gate, i / shape.value_heads) + offset, shape.value_dim, to);
    }
  });
  for (const SequenceRows& sequence : plan.sequences) {
    if (!sequence.keep_all) continue;
    std::vector<const float*> fresh;
    for (int32_t i = 0; i < sequence.row_count; ++i) fresh.push_back(row_of(a.mixed, sequence.first_row + i));
    update_tail(shape, fresh, cache.state(a.entry, sequence.state_slot) + state_floats);
  }
}

void CpuBackend::walk_states(const Plan& plan, const GatedDelta& a, const GatedDeltaShape& shape,
                             const DeltaInputs& inputs) {
  auto& cache = *static_cast<CpuCache*>(a.cache);
  const int64_t head_floats = 1LL * shape.value_dim * shape.key_dim;
  std::vector<std::vector<StateRoute>> routes(plan.sequences.size());
  int32_t most_buffers = 0;
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    if (plan.sequences[s].keep_all) continue;
    int32_t buffers = 0;
    routes[s] = route_states(plan, plan.sequences[s], buffers);
    most_buffers = std::max(most_buffers, buffers);
  }
  const int64_t units = static_cast<int64_t>(plan.sequences.size()) * shape.value_heads;
  threads_.run(units, [&](int64_t begin, int64_t end, int worker) {
    float* scratch = worker_floats(worker, most_buffers * head_floats);
    for (int64_t unit = begin; unit < end; ++unit) {
      const auto s = static_cast<size_t>(unit / shape.value_heads);
      const int64_t head = unit % shape.value_heads;
      const SequenceRows& sequence = plan.sequences[s];
      float* committed = cache.state(a.entry, sequence.state_slot) + head * head_floats;
      for (int32_t i = 0; i < sequence.row_count; ++i) {
        const int64_t row = sequence.first_row + i;
        DeltaStep step = step_of(shape, inputs, row, head);
        step.source = committed;
        step.state = committed;
        if (!sequence.keep_all) {
          const StateRoute& route = routes[s][static_cast<size_t>(i)];
          if (route.source >= 0) step.source = scratch + route.source * head_floats;
          step.state = scratch + route.target * head_floats;
        }
        step.output = row_of(a.output, row) + head * shape.value_dim;
        kernels_.delta_step(step);
      }
    }
  });
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

void CpuBackend::replay_delta(CpuCache& cache, int32_t entry, int32_t slot, std::span<const float* const> records) {
  if (records.empty()) return;
  const GatedDelta& a = cache.window(entry).step;
  const GatedDeltaShape& shape = cache.gated_delta(entry);
  const auto rows = static_cast<int64_t>(records.size());
  float* state = cache.state(entry, slot);
  float* tail = state + 1LL * shape.value_heads * shape.value_dim * shape.key_dim;
  std::vector<const float*> raw;
  std::vector<const float*> beta;
  std::vector<const float*> decay;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = row - shape.kernel + 1; j <= row; ++j) {
      raw.push_back(j >= 0 ? records[static_cast<size_t>(j)] : tail + (j + shape.kernel - 1) * shape.channels());
    }
    beta.push_back(records[static_cast<size_t>(row)] + shape.channels());
    decay.push_back(beta.back() + shape.value_heads);
  }
  DeltaInputs inputs{rows, raw.data(), beta.data(), decay.data(), nullptr, nullptr};
  inputs.channels = delta_.floats(rows * (shape.channels() + 2 * shape.value_heads));
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
  update_tail(shape, records, tail);
}

void CpuBackend::commit(const Plan& plan, Cache& any_cache, std::span<const KeptPath> kept) {
  auto& cache = static_cast<CpuCache&>(any_cache);
  const auto entries = static_cast<int32_t>(cache.layout().entries.size());
  uint64_t forward = 0;
  for (int32_t entry = 0; entry < entries; ++entry) forward = std::max(forward, cache.window(entry).forward);
  const PlanView view = view_of(plan, forward);
  for (const KeptPath& path : kept) {
    const SequenceRows& sequence = plan.sequences[static_cast<size_t>(path.sequence)];
    if (sequence.keep_all) continue;
    int32_t parent = -1;
    for (const int32_t row : path.rows) {
      check(row >= sequence.first_row && row < sequence.first_row + sequence.row_count &&
                plan.parents[static_cast<size_t>(row)] == parent,
            "a kept path that is no path of the window");
      parent = row;
    }
    for (int32_t entry = 0; entry < entries; ++entry) {
      if (cache.window(entry).forward != forward || forward == 0) continue;
      if (std::holds_alternative<PagedEntry>(cache.layout().entries[static_cast<size_t>(entry)])) {
        commit_pages(plan, view, cache, entry, path);
        continue;
      }
      const int64_t width = record_width(cache.gated_delta(entry));
      std::vector<const float*> records;
      for (const int32_t row : path.rows) {
        const int32_t index = view.window_index[static_cast<size_t>(row)];
        records.push_back(cache.window(entry).rows.data() + index * width);
      }
      replay_delta(cache, entry, sequence.state_slot, records);
    }
  }
}

}  // namespace tensorfold::backend::cpu
