#include "backend/cuda/draw_queue.h"

#include <algorithm>
#include <cstring>

#include "backend/keyed_sampling.h"
#include "base/error.h"

namespace tensorfold::backend::cuda {
namespace {

/// Memory for at least `count` values. Nothing that is recorded names it, so growing is nobody else's business.
template <typename Array>
void reserve(Array& array, size_t count) {
  if (array.size() < count) array = Array();
  if (array.size() < count) array = Array(count + count / 2);
}

/// The answer for a row in which nothing is above minus infinity: the first allowed token, or 0.
int32_t first_allowed(std::span<const uint32_t> mask, int64_t vocabulary) {
  for (size_t word = 0; word < mask.size(); ++word) {
    if (mask[word] == 0) continue;
    const int64_t id = static_cast<int64_t>(word) * 32 + __builtin_ctz(mask[word]);
    return id < vocabulary ? static_cast<int32_t>(id) : 0;
  }
  return 0;
}

bool has_penalties(const Penalties& penalties) {
  return !penalties.counts.empty() &&
         (penalties.repetition != 1.0F || penalties.frequency != 0.0F || penalties.presence != 0.0F);
}

}  // namespace

template <typename Entry>
bool DrawQueue::names_one_twice(std::span<const Entry> entries, int64_t vocabulary) {
  if (entries.size() < 2) return false;
  seen_.assign(static_cast<size_t>(vocabulary + 31) / 32, 0);
  for (const Entry& entry : entries) {
    if (entry.token < 0 || entry.token >= vocabulary) continue;
    uint32_t& word = seen_[static_cast<size_t>(entry.token) / 32];
    const uint32_t bit = uint32_t{1} << (entry.token % 32);
    if ((word & bit) != 0) return true;
    word |= bit;
  }
  return false;
}

DrawQueue::Way DrawQueue::way_of(const DrawRow& row, int64_t vocabulary) {
  if (row.forced >= 0 && (row.top_logprobs < 0 || row.forced >= vocabulary)) return Way::known;
  if (row.forced >= 0) return Way::device;
  const bool twice = (has_penalties(row.penalties) && names_one_twice(row.penalties.counts, vocabulary)) ||
                     names_one_twice(row.penalties.biases, vocabulary);
  return twice || row_draw::too_many_in_order(row.settings) ? Way::host : Way::device;
}

template <typename Value>
size_t DrawQueue::add_to_upload(std::span<const Value> values) {
  const size_t at = (upload_.size() + 15) / 16 * 16;
  upload_.resize(at + values.size_bytes());
  if (!values.empty()) std::memcpy(upload_.data() + at, values.data(), values.size_bytes());
  return at;
}

/// Pointers into the upload are offsets until its place is known.
DrawTask DrawQueue::task_of(const DrawRow& row, const Activation& logits) {
  DrawTask task;
  task.raw = static_cast<const float*>(logits.data) + row.logit_row * logits.stride + logits.offset;
  task.request = {row.settings, row.position, row.forced, first_allowed(row.mask, vocabulary_),
                  std::min(row.top_logprobs, Drawn::most_logprobs)};
  if (row.forced >= 0) return task;
  task.mask_words = static_cast<int32_t>(row.mask.size());
  if (has_penalties(row.penalties)) task.count_entries = static_cast<int32_t>(row.penalties.counts.size());
  task.bias_entries = static_cast<int32_t>(row.penalties.biases.size());
  task.repetition = row.penalties.repetition;
  task.frequency = row.penalties.frequency;
  task.presence = row.penalties.presence;
  return task;
}

void DrawQueue::upload_and_launch(std::vector<DrawTask>& tasks, UploadRing& uploads, cudaStream_t stream) {
  // Where each task's lists lie; the tasks themselves come first.
  upload_.assign(tasks.size() * sizeof(DrawTask), std::byte{0});
  struct Offsets {
    size_t mask = 0;
    size_t counts = 0;
    size_t biases = 0;
  };
  std::vector<Offsets> offsets(tasks.size());
  size_t adjusted = 0;
  for (const Pending& pending : pending_) {
    if (pending.way != Way::device) continue;
    const DrawTask& task = tasks[pending.place];
    Offsets& at = offsets[pending.place];
    if (task.mask_words > 0) at.mask = add_to_upload(pending.row.mask);
    if (task.count_entries > 0) at.counts = add_to_upload(pending.row.penalties.counts);
    if (task.bias_entries > 0) at.biases = add_to_upload(pending.row.penalties.biases);
    if (task.count_entries > 0 || task.bias_entries > 0) ++adjusted;
  }
  reserve(uploaded_, upload_.size());
  const auto width = static_cast<size_t>(vocabulary_);
  reserve(adjusted_, adjusted * width);
  reserve(results_, tasks.size());
  reserve(read_results_, tasks.size());
  size_t next_adjusted = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const std::byte* base = uploaded_.data();
    DrawTask& task = tasks[i];
    if (task.mask_words > 0) task.mask = reinterpret_cast<const uint32_t*>(base + offsets[i].mask);
    if (task.count_entries > 0) task.counts = reinterpret_cast<const TokenCount*>(base + offsets[i].counts);
    if (task.bias_entries > 0) task.biases = reinterpret_cast<const LogitBias*>(base + offsets[i].biases);
    if (task.count_entries > 0 || task.bias_entries > 0) task.adjusted = adjusted_.data() + next_adjusted++ * width;
  }
  std::memcpy(upload_.data(), tasks.data(), tasks.size() * sizeof(DrawTask));
  uploads.copy(uploaded_.data(), upload_.data(), upload_.size(), stream);
  launch_draws(reinterpret_cast<const DrawTask*>(uploaded_.data()), static_cast<int>(tasks.size()), adjusted > 0,
               static_cast<int32_t>(vocabulary_), results_.data(), stream);
  cuda_check(cudaMemcpyAsync(read_results_.data(), results_.data(), tasks.size() * sizeof(DrawResult),
                             cudaMemcpyDeviceToHost, stream),
             "copy drawn tokens");
}

void DrawQueue::draw(const Activation& logits, std::span<const DrawRow> rows, UploadRing& uploads,
                     cudaStream_t stream) {
  check(logits.bf16 == 0, "logits are fp32");
  vocabulary_ = logits.width;
  pending_.clear();
  std::vector<DrawTask> tasks;
  size_t host_rows = 0;
  for (const DrawRow& row : rows) {
    Pending& pending = pending_.emplace_back();
    pending.row = row;
    pending.way = way_of(row, vocabulary_);
    if (pending.way == Way::device) {
      pending.place = tasks.size();
      tasks.push_back(task_of(row, logits));
    } else if (pending.way == Way::host) {
      pending.place = host_rows++;
      pending.counts.assign(row.penalties.counts.begin(), row.penalties.counts.end());
      pending.biases.assign(row.penalties.biases.begin(), row.penalties.biases.end());
      pending.mask.assign(row.mask.begin(), row.mask.end());
    }
  }
  if (!tasks.empty()) upload_and_launch(tasks, uploads, stream);
  const auto width = static_cast<size_t>(vocabulary_);
  reserve(host_logits_, host_rows * width);
  for (const Pending& pending : pending_) {
    if (pending.way != Way::host) continue;
    const float* from = static_cast<const float*>(logits.data) + pending.row.logit_row * logits.stride + logits.offset;
    cuda_check(cudaMemcpyAsync(host_logits_.data() + pending.place * width, from, width * sizeof(float),
                               cudaMemcpyDeviceToHost, stream),
               "copy logits");
  }
}

void DrawQueue::read(std::span<Drawn> out, cudaStream_t stream) {
  check(out.size() == pending_.size(), "as many results as draws");
  cuda_check(cudaStreamSynchronize(stream), "finish a round");
  const auto width = static_cast<size_t>(vocabulary_);
  for (size_t i = 0; i < out.size(); ++i) {
    Pending& pending = pending_[i];
    DrawRow& row = pending.row;
    out[i] = {};
    if (pending.way == Way::known) {
      out[i].token = row.forced;
    } else if (pending.way == Way::host) {
      row.penalties.counts = pending.counts;
      row.penalties.biases = pending.biases;
      row.mask = pending.mask;
      draw_token({host_logits_.data() + pending.place * width, width}, row, out[i]);
    } else {
      const DrawResult& result = read_results_.data()[pending.place];
      out[i].token = result.token;
      if (row.top_logprobs < 0) continue;
      out[i].logprob = row_logprob(result.logit, result.best, result.total);
      out[i].probability = static_cast<float>(keyed::exponential(static_cast<double>(out[i].logprob)));
      out[i].ranked = result.ranked;
      for (int32_t j = 0; j < result.ranked; ++j) {
        out[i].top[static_cast<size_t>(j)] = {result.ids[j], row_logprob(result.logits[j], result.best, result.total)};
      }
    }
  }
}

void DrawQueue::find_candidates(const Activation& logits, int32_t rows, int32_t count, cudaStream_t stream) {
  check(logits.bf16 == 0, "logits are fp32");
  check(count >= 0 && count <= logits.width, "more candidates than the vocabulary has");
  if (count > row_draw::kMostListed)
    fail(ErrorKind::unsupported, "the CUDA backend finds at most {} candidates a row, not {}", row_draw::kMostListed,
         count);
  candidate_rows_ = rows;
  candidate_count_ = count;
  const size_t wanted = static_cast<size_t>(rows) * static_cast<size_t>(count);
  if (wanted == 0) return;
  static_assert(sizeof(float) == sizeof(int32_t));
  reserve(candidates_, 2 * wanted);
  reserve(read_candidates_, 2 * wanted);
  launch_candidates(static_cast<const float*>(logits.data) + logits.offset, logits.stride, rows,
                    static_cast<int32_t>(logits.width), count, candidates_.data(),
                    reinterpret_cast<float*>(candidates_.data() + wanted), stream);
  cuda_check(cudaMemcpyAsync(read_candidates_.data(), candidates_.data(), 2 * wanted * sizeof(int32_t),
                             cudaMemcpyDeviceToHost, stream),
             "copy candidates");
}

void DrawQueue::read_candidates(std::span<float> values, std::span<int32_t> ids, cudaStream_t stream) {
  const size_t wanted = static_cast<size_t>(candidate_rows_) * static_cast<size_t>(candidate_count_);
  check(values.size() == wanted && ids.size() == wanted, "as many candidates a row as asked");
  cuda_check(cudaStreamSynchronize(stream), "finish a round");
  if (wanted == 0) return;
  std::memcpy(ids.data(), read_candidates_.data(), wanted * sizeof(int32_t));
  std::memcpy(values.data(), read_candidates_.data() + wanted, wanted * sizeof(float));
}

}  // namespace tensorfold::backend::cuda
