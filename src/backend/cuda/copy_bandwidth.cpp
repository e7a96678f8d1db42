#include "backend/cuda/copy_bandwidth.h"

#include <algorithm>

#include "backend/cuda/device_array.h"

namespace tensorfold::backend::cuda {
namespace {

class Event {
 public:
  Event() { cuda_check(cudaEventCreate(&event_), "create an event"); }
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

double measure_copy_bandwidth(int index) {
  constexpr size_t bytes = size_t{1} << 30;
  cuda_check(cudaSetDevice(index), "select the GPU");
  DeviceArray<std::byte> from(bytes);
  DeviceArray<std::byte> to(bytes);
  cuda_check(cudaMemset(from.data(), 0x5A, bytes), "fill memory");
  const Event begin;
  const Event end;
  double best = 0.0;
  for (int i = 0; i < 9; ++i) {
    cuda_check(cudaEventRecord(begin.get()), "record an event");
    cuda_check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice), "copy memory");
    cuda_check(cudaEventRecord(end.get()), "record an event");
    cuda_check(cudaEventSynchronize(end.get()), "copy memory");
    float milliseconds = 0.0F;
    cuda_check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "read a time");
    if (i > 0) best = std::max(best, 2.0 * static_cast<double>(bytes) / static_cast<double>(milliseconds) * 1e3);
  }
  return best;
}

}  // namespace tensorfold::backend::cuda
