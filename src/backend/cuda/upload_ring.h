// Copies of small host data to the device without waiting.
#pragma once

#include <array>
#include <cstddef>

#include "backend/cuda/device_array.h"

namespace tensorfold::backend::cuda {

/// Page-locked pieces in turn, so that the host can prepare the next copy while one is under way.
class UploadRing {
 public:
  UploadRing() = default;
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;
  void copy(void* to, const void* from, size_t bytes, cudaStream_t stream);

 private:
  struct Slot {
    PinnedArray<std::byte> memory;
    cudaEvent_t done = nullptr;
  };
  std::array<Slot, 8> slots_;
  size_t next_ = 0;
};

}  // namespace tensorfold::backend::cuda
