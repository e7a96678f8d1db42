#include "backend/cpu/recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend.h"

namespace tensorfold::backend::cpu {

void update_tail(int64_t kernel, int64_t channels, std::span<const float* const> fresh, float* tail) {
  const int64_t kept = kernel - 1;
  const auto count = static_cast<int64_t>(fresh.size());
  const auto bytes = static_cast<size_t>(channels) * sizeof(float);
  for (int64_t j = 0; j < kept; ++j) {
    const int64_t from = j + count - kept;  // index into the fresh rows; negative: an old row
    float* to = tail + j * channels;
    if (from >= 0) {
      std::memcpy(to, fresh[static_cast<size_t>(from)], bytes);
    } else if (count > 0) {
      std::memmove(to, tail + (j + count) * channels, bytes);
    }
  }
}

void find_history(const Plan& plan, int32_t row, Tensor raw, const float* tail, int64_t kernel, const float** rows) {
  int64_t above = kernel - 2;  // index into the tail once the path is used up
  for (int64_t j = kernel - 1; j >= 0; --j) {
    rows[j] = row >= 0 ? row_of(raw, row) : tail + (above--) * raw.width;
    if (row >= 0) row = plan.parents[static_cast<size_t>(row)];
  }
}

void find_kept_history(std::span<const float* const> kept, int64_t index, const float* tail, int64_t kernel,
                       int64_t channels, const float** rows) {
  for (int64_t i = 0; i < kernel; ++i) {
    const int64_t j = index - kernel + 1 + i;
    rows[i] = j >= 0 ? kept[static_cast<size_t>(j)] : tail + (j + kernel - 1) * channels;
  }
}

RawRows raw_rows_of(std::span<const float* const> records, std::span<const int64_t> widths, const float* tail,
                    int64_t kernel, int64_t channels) {
  RawRows raw;
  raw.count = static_cast<int64_t>(records.size());
  raw.extras = static_cast<int64_t>(widths.size());
  raw.history.resize(records.size() * static_cast<size_t>(kernel));
  for (int64_t row = 0; row < raw.count; ++row) {
    find_kept_history(records, row, tail, kernel, channels, &raw.history[static_cast<size_t>(row * kernel)]);
    const float* next = records[static_cast<size_t>(row)] + channels;
    for (const int64_t width : widths) {
      raw.extra.push_back(next);
      next += width;
    }
  }
  return raw;
}

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

void CpuBackend::walk_states(const Plan& plan, CpuCache& cache, int32_t entry, int64_t heads, int64_t head_floats,
                             const StepFunction& step) {
  std::vector<std::vector<StateRoute>> routes(plan.sequences.size());
  int32_t most_buffers = 0;
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    if (plan.sequences[s].keep_all) continue;
    int32_t buffers = 0;
    routes[s] = route_states(plan, plan.sequences[s], buffers);
    most_buffers = std::max(most_buffers, buffers);
  }
  const int64_t units = static_cast<int64_t>(plan.sequences.size()) * heads;
  threads_.run(units, [&](int64_t begin, int64_t end, int worker) {
    float* scratch = worker_floats(worker, most_buffers * head_floats);
    for (int64_t unit = begin; unit < end; ++unit) {
      const auto s = static_cast<size_t>(unit / heads);
      const int64_t head = unit % heads;
      const SequenceRows& sequence = plan.sequences[s];
      float* committed = cache.state(entry, sequence.state_slot) + head * head_floats;
      for (int32_t i = 0; i < sequence.row_count; ++i) {
        const float* source = committed;
        float* state = committed;
        if (!sequence.keep_all) {
          const StateRoute& route = routes[s][static_cast<size_t>(i)];
          if (route.source >= 0) source = scratch + route.source * head_floats;
          state = scratch + route.target * head_floats;
        }
        step(sequence.first_row + i, head, source, state);
      }
    }
  });
}

void CpuBackend::replay_states(CpuCache& cache, int32_t entry, int32_t slot, int64_t rows, int64_t heads,
                               int64_t head_floats, const StepFunction& step) {
  float* committed = cache.state(entry, slot);
  threads_.run(heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t head = begin; head < end; ++head) {
      float* state = committed + head * head_floats;
      for (int64_t row = 0; row < rows; ++row) step(row, head, state, state);
    }
  });
}

RawRows CpuBackend::take_raw_rows(const Plan& plan, CpuCache& cache, int32_t entry, Tensor mixed,
                                  std::span<const Tensor> extras, int64_t kernel, int64_t state_floats) {
  RawRows raw;
  raw.count = plan.rows();
  raw.extras = static_cast<int64_t>(extras.size());
  raw.history.resize(static_cast<size_t>(raw.count * kernel));
  int64_t width = mixed.width;
  for (const Tensor& extra : extras) width += extra.width;
  WindowRecord& record = cache.open_window(entry, view_.window_rows, width, view_.forward);
  for (int32_t row = 0; row < plan.rows(); ++row) {
    const auto r = static_cast<size_t>(row);
    const int32_t slot = plan.sequences[static_cast<size_t>(plan.owner[r])].state_slot;
    find_history(plan, row, mixed, cache.state(entry, slot) + state_floats, kernel,
                 &raw.history[r * static_cast<size_t>(kernel)]);
    const int32_t index = view_.window_index[r];
    float* to = index < 0 ? nullptr : record.rows.data() + index * width;
    const auto keep = [&](Tensor part) {
      if (to == nullptr) return;
      std::memcpy(to, row_of(part, row), static_cast<size_t>(part.width) * sizeof(float));
      to += part.width;
    };
    keep(mixed);
    for (const Tensor& extra : extras) {
      raw.extra.push_back(row_of(extra, row));
      keep(extra);
    }
  }
  return raw;
}

void CpuBackend::normalise_delta_heads(int64_t key_heads, int64_t dim, float epsilon, float* channels) const {
  const auto query_scale = static_cast<float>(1.0 / static_cast<double>(dim));
  const auto key_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  for (int64_t head = 0; head < 2 * key_heads; ++head) {
    float* values = channels + head * dim;
    kernels_.rms_norm(values, nullptr, dim, epsilon, values);
    kernels_.scale(head < key_heads ? query_scale : key_scale, dim, values);
  }
}

void CpuBackend::norm_and_gate_heads(const Plan& plan, Tensor output, Tensor gate, const Vector* norm, float epsilon,
                                     int64_t heads, bool sigmoid) {
  const float* weight = static_cast<const CpuVector*>(norm)->values.data();
  const int64_t dim = output.width / heads;
  const auto apply_gate = sigmoid ? kernels_.multiply_sigmoid : kernels_.multiply_silu;
  threads_.run(plan.rows() * heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t offset = i % heads * dim;
      float* to = row_of(output, i / heads) + offset;
      kernels_.rms_norm(to, weight, dim, epsilon, to);
      apply_gate(row_of(gate, i / heads) + offset, dim, to);
    }
  });
}

void CpuBackend::keep_tails(const Plan& plan, CpuCache& cache, int32_t entry, Tensor raw, int64_t kernel,
                            int64_t state_floats) {
  for (const SequenceRows& sequence : plan.sequences) {
    if (!sequence.keep_all) continue;
    std::vector<const float*> fresh;
    for (int32_t i = 0; i < sequence.row_count; ++i) fresh.push_back(row_of(raw, sequence.first_row + i));
    update_tail(kernel, raw.width, fresh, cache.state(entry, sequence.state_slot) + state_floats);
  }
}

void CpuBackend::check_slots(const Plan& plan, const CpuCache& cache) {
  for (const SequenceRows& sequence : plan.sequences)
    check(sequence.state_slot >= 0 && sequence.state_slot < cache.size().state_slots, "a state slot outside the cache");
}

}  // namespace tensorfold::backend::cpu
