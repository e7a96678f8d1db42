#include "backend/cuda/upload_ring.h"

#include <cstring>

namespace tensorfold::backend::cuda {

UploadRing::~UploadRing() {
  for (Slot& slot : slots_)
    if (slot.done != nullptr) static_cast<void>(cudaEventDestroy(slot.done));
}

void UploadRing::copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  if (slot.done == nullptr) cuda_check(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "create an event");
  cuda_check(cudaEventSynchronize(slot.done), "wait for a copy");
  if (slot.memory.size() < bytes) slot.memory = PinnedArray<std::byte>(bytes + bytes / 2 + 4096);
  std::memcpy(slot.memory.data(), from, bytes);
  cuda_check(cudaMemcpyAsync(to, slot.memory.data(), bytes, cudaMemcpyHostToDevice, stream), "copy to the device");
  cuda_check(cudaEventRecord(slot.done, stream), "record an event");
}

}  // namespace tensorfold::backend::cuda
