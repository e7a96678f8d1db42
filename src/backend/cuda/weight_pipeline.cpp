#include "backend/cuda/weight_pipeline.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

#include "backend/cuda/synthetic_weights.h"
#include "base/error.h"

namespace tensorfold::backend::cuda {
namespace {

constexpr size_t kReaders = 16;
constexpr size_t kLeastRead = 1 << 20;  // of one thread
constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void read_parallel(const format::TensorStore& store, const format::TensorInfo& tensor, uint64_t offset,
                   std::span<std::byte> out) {
  const size_t readers = std::clamp<size_t>(out.size() / kLeastRead, 1, kReaders);
  if (readers == 1) return store.read(tensor, offset, out);
  std::vector<std::exception_ptr> errors(readers);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < readers; ++i) {
      const size_t begin = out.size() * i / readers;
      const size_t end = out.size() * (i + 1) / readers;
      threads.emplace_back([&, i, begin, end] {
        try {
          store.read(tensor, offset + begin, out.subspan(begin, end - begin));
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

WeightPipeline::~WeightPipeline() {
  for (Slot& slot : slots_) {
    if (slot.done == nullptr) continue;
    static_cast<void>(cudaEventSynchronize(slot.done));
    static_cast<void>(cudaEventDestroy(slot.done));
  }
}

void WeightPipeline::begin(size_t bytes, cudaStream_t stream) {
  current_ = (current_ + 1) % slots_.size();
  used_ = 0;
  stream_ = stream;
  Slot& slot = slots_[current_];
  if (slot.done == nullptr) cuda_check(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "create an event");
  cuda_check(cudaEventSynchronize(slot.done), "wait for a copy");
  bytes += 4 * kAlignment;
  if (slot.device.size() >= bytes) return;
  // Sizes differ a little from tensor to tensor; page-locking memory again and again would take longer than reading.
  bytes = std::max<size_t>(bytes, kPieceBytes + kPieceBytes / 4);
  slot.host = PinnedArray<std::byte>();
  slot.device = DeviceArray<std::byte>();
  slot.host = PinnedArray<std::byte>(bytes);
  slot.device = DeviceArray<std::byte>(bytes);
}

const void* WeightPipeline::add(const format::TensorStore& store, const format::TensorInfo& tensor, uint64_t offset,
                                size_t bytes) {
  Slot& slot = slots_[current_];
  check(used_ + bytes <= slot.device.size(), "a piece holds what it was begun for");
  const size_t at = used_;
  used_ += aligned(bytes);
  if (const format::SyntheticTensor* recipe = store.recipe(tensor)) {
    launch_synthetic(*recipe, offset, bytes, slot.device.data() + at, stream_);
    return slot.device.data() + at;
  }
  read_parallel(store, tensor, offset, {slot.host.data() + at, bytes});
  cuda_check(cudaMemcpyAsync(slot.device.data() + at, slot.host.data() + at, bytes, cudaMemcpyHostToDevice, stream_),
             "copy weights to the device");
  return slot.device.data() + at;
}

void WeightPipeline::end() { cuda_check(cudaEventRecord(slots_[current_].done, stream_), "record an event"); }

void WeightPipeline::release() {
  for (Slot& slot : slots_) {
    if (slot.done != nullptr) cuda_check(cudaEventSynchronize(slot.done), "wait for a copy");
    slot.host = PinnedArray<std::byte>();
    slot.device = DeviceArray<std::byte>();
  }
}

}  // namespace tensorfold::backend::cuda
