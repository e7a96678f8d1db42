// Commit, and what moves states and pages.
#include <cstring>

#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace tensorfold::backend::cuda {
namespace {

const CudaCache& cuda_cache(const Cache& cache) { return dynamic_cast<const CudaCache&>(cache); }

template <typename T>
size_t append(std::vector<std::byte>& bytes, const std::vector<T>& values) {
  const size_t at = (bytes.size() + 15) / 16 * 16;
  bytes.resize(at + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data() + at, values.data(), values.size() * sizeof(T));
  return at;
}

/// Every piece of memory that belongs to state slot `slot`, in the order of read_state.
template <typename Visit>
void for_each_state_piece(const CudaCache& cache, int32_t slot, Visit visit) {
  check(slot >= 0 && slot < cache.size().state_slots, "a state slot of the cache");
  for (const auto& state : cache.all_states()) {
    if (!state) continue;
    visit(static_cast<void*>(state->states.data() + slot * state->state_values()),
          static_cast<size_t>(state->state_values()) * sizeof(float));
    visit(static_cast<void*>(state->tails.data() + slot * state->tail_values()),
          static_cast<size_t>(state->tail_values()) * sizeof(uint16_t));
  }
}

template <typename Visit>
void for_each_page_piece(const CudaCache& cache, int32_t page, Visit visit) {
  check(page >= 0 && page < cache.size().pages, "a page of the cache");
  for (const auto& paged : cache.all_paged()) {
    if (!paged) continue;
    const int64_t values = cache.size().page_tokens * paged->width;
    visit(static_cast<void*>(paged->pages.data() + page * values), static_cast<size_t>(values) * sizeof(uint16_t));
  }
}

}  // namespace

void CudaBackend::commit(const Plan& plan, Cache& any_cache, std::span<const KeptPath> kept_paths) {
  const CudaCache& cache = cuda_cache(any_cache);
  std::vector<int32_t> record_of(static_cast<size_t>(plan.rows()), -1);
  int32_t window_rows = 0;
  for (const SequenceRows& sequence : plan.sequences) {
    if (sequence.keep_all) continue;
    for (int32_t i = 0; i < sequence.row_count; ++i)
      record_of[static_cast<size_t>(sequence.first_row + i)] = window_rows++;
  }
  std::vector<KeptSequence> kept;
  std::vector<KeptKey> keys;
  std::vector<int32_t> records;
  for (const KeptPath& path : kept_paths) {
    const SequenceRows& sequence = plan.sequences[static_cast<size_t>(path.sequence)];
    check(!sequence.keep_all, "a sequence that keeps all its rows takes no part in commit");
    kept.push_back({sequence.state_slot, static_cast<int32_t>(records.size()), static_cast<int32_t>(path.rows.size())});
    const auto pages = plan.pages_of(sequence);
    for (const int32_t row : path.rows) {
      const int32_t record = record_of[static_cast<size_t>(row)];
      const int32_t position = plan.positions[static_cast<size_t>(row)];
      records.push_back(record);
      if (!pages.empty())
        keys.push_back({record, pages[static_cast<size_t>(position / cache.size().page_tokens)],
                        position % cache.size().page_tokens});
    }
  }
  if (records.empty()) return;
  std::vector<DeltaLayer> delta_layers;
  std::vector<PagedLayer> paged_layers;
  const GatedDeltaShape* shape = nullptr;
  for (const auto& state : cache.all_states()) {
    if (!state) continue;
    check(shape == nullptr || state->shape.channels() == shape->channels(), "recurrent layers of one shape");
    shape = &state->shape;
    delta_layers.push_back({state->states.data(), state->tails.data(), state->steps.data(), state->raw.data()});
  }
  for (const auto& paged : cache.all_paged())
    if (paged) paged_layers.push_back({paged->pages.data(), paged->window.data(), paged->width});
  std::vector<std::byte> bytes;
  const size_t kept_at = append(bytes, kept);
  const size_t keys_at = append(bytes, keys);
  const size_t records_at = append(bytes, records);
  const size_t delta_at = append(bytes, delta_layers);
  const size_t paged_at = append(bytes, paged_layers);
  auto* memory = commit_list_.get<std::byte>(std::max<size_t>(bytes.size(), 64 << 10));
  uploads_.copy(memory, bytes.data(), bytes.size(), stream_);
  if (!paged_layers.empty() && !keys.empty())
    launch_keep_keys(reinterpret_cast<const KeptKey*>(memory + keys_at), static_cast<int>(keys.size()),
                     cache.size().page_tokens, reinterpret_cast<const PagedLayer*>(memory + paged_at),
                     static_cast<int>(paged_layers.size()), stream_);
  if (shape != nullptr)
    launch_gated_delta_commit(reinterpret_cast<const KeptSequence*>(memory + kept_at), static_cast<int>(kept.size()),
                              reinterpret_cast<const int32_t*>(memory + records_at), *shape,
                              reinterpret_cast<const DeltaLayer*>(memory + delta_at),
                              static_cast<int>(delta_layers.size()), stream_);
}

void CudaBackend::clear_state(Cache& cache, int32_t slot) {
  for_each_state_piece(cuda_cache(cache), slot, [&](void* at, size_t bytes) {
    cuda_check(cudaMemsetAsync(at, 0, bytes, stream_), "clear a state");
  });
}

void CudaBackend::copy_state(Cache& cache, int32_t from, int32_t to) {
  std::vector<void*> sources;
  for_each_state_piece(cuda_cache(cache), from, [&](void* at, size_t) { sources.push_back(at); });
  size_t next = 0;
  for_each_state_piece(cuda_cache(cache), to, [&](void* at, size_t bytes) {
    cuda_check(cudaMemcpyAsync(at, sources[next++], bytes, cudaMemcpyDeviceToDevice, stream_), "copy a state");
  });
}

void CudaBackend::copy_page(Cache& cache, int32_t from, int32_t to) {
  std::vector<void*> sources;
  for_each_page_piece(cuda_cache(cache), from, [&](void* at, size_t) { sources.push_back(at); });
  size_t next = 0;
  for_each_page_piece(cuda_cache(cache), to, [&](void* at, size_t bytes) {
    cuda_check(cudaMemcpyAsync(at, sources[next++], bytes, cudaMemcpyDeviceToDevice, stream_), "copy a page");
  });
}

void CudaBackend::read_state(const Cache& cache, int32_t slot, std::span<std::byte> out) {
  check(static_cast<int64_t>(out.size()) == cache.state_bytes(), "room for a whole state");
  size_t done = 0;
  for_each_state_piece(cuda_cache(cache), slot, [&](void* at, size_t bytes) {
    cuda_check(cudaMemcpyAsync(out.data() + done, at, bytes, cudaMemcpyDeviceToHost, stream_), "read a state");
    done += bytes;
  });
  cuda_check(cudaStreamSynchronize(stream_), "read a state");
}

void CudaBackend::write_state(Cache& cache, int32_t slot, std::span<const std::byte> in) {
  check(static_cast<int64_t>(in.size()) == cache.state_bytes(), "a whole state");
  size_t done = 0;
  for_each_state_piece(cuda_cache(cache), slot, [&](void* at, size_t bytes) {
    cuda_check(cudaMemcpyAsync(at, in.data() + done, bytes, cudaMemcpyHostToDevice, stream_), "write a state");
    done += bytes;
  });
  cuda_check(cudaStreamSynchronize(stream_), "write a state");
}

void CudaBackend::read_page(const Cache& cache, int32_t page, std::span<std::byte> out) {
  check(static_cast<int64_t>(out.size()) == cache.page_bytes(), "room for a whole page");
  check(page >= 0 && page < cache.size().pages, "a page of the cache");
  auto* const rows = transfer_.get<uint16_t>(out.size() / 2);
  auto* to = rows;
  for (const auto& paged : cuda_cache(cache).all_paged()) {
    if (!paged) continue;
    launch_read_page(paged->pages.data(), page, cache.size().page_tokens, paged->width, to, stream_);
    to += cache.size().page_tokens * paged->width;
  }
  cuda_check(cudaMemcpyAsync(out.data(), rows, out.size(), cudaMemcpyDeviceToHost, stream_), "read a page");
  cuda_check(cudaStreamSynchronize(stream_), "read a page");
}

void CudaBackend::write_page(Cache& cache, int32_t page, std::span<const std::byte> in) {
  check(static_cast<int64_t>(in.size()) == cache.page_bytes(), "a whole page");
  check(page >= 0 && page < cache.size().pages, "a page of the cache");
  auto* const rows = transfer_.get<uint16_t>(in.size() / 2);
  cuda_check(cudaMemcpyAsync(rows, in.data(), in.size(), cudaMemcpyHostToDevice, stream_), "write a page");
  const auto* from = rows;
  for (const auto& paged : cuda_cache(cache).all_paged()) {
    if (!paged) continue;
    launch_write_page(paged->pages.data(), page, cache.size().page_tokens, paged->width, from, stream_);
    from += cache.size().page_tokens * paged->width;
  }
  cuda_check(cudaStreamSynchronize(stream_), "write a page");
}

void CudaBackend::read_rows(Tensor tensor, int64_t first, int64_t count, std::span<float> out) {
  check(static_cast<int64_t>(out.size()) == count * tensor.width, "room for the rows");
  auto* values = transfer_.get<float>(out.size());
  launch_read_rows(activation(tensor), first, count, values, stream_);
  cuda_check(cudaMemcpyAsync(out.data(), values, out.size_bytes(), cudaMemcpyDeviceToHost, stream_), "read rows");
  cuda_check(cudaStreamSynchronize(stream_), "read rows");
}

void CudaBackend::write_rows(Tensor tensor, int64_t first, int64_t count, std::span<const float> in) {
  check(static_cast<int64_t>(in.size()) == count * tensor.width, "the rows' values");
  auto* values = transfer_.get<float>(in.size());
  cuda_check(cudaMemcpyAsync(values, in.data(), in.size_bytes(), cudaMemcpyHostToDevice, stream_), "write rows");
  launch_write_rows(activation(tensor), first, count, values, stream_);
  cuda_check(cudaStreamSynchronize(stream_), "write rows");
}

}  // namespace tensorfold::backend::cuda
