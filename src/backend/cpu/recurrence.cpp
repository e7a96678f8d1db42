#include "backend/cpu/recurrence.h"

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
