// Device and pinned host memory that frees itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <cuda_runtime.h>

#include "backend/cuda/cuda_error.h"

namespace tensorfold::backend::cuda {

/// Counts creations and ends of memory that captured graphs may name: a change makes all graphs stale.
void count_memory_change();
uint64_t memory_changes();

/// `count` values in device memory, uninitialised. Throws Error(capacity) when memory ends.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t count) : count_(count) {
    if (count == 0) return;
    if (cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)) != cudaSuccess)
      fail_for_memory(count * sizeof(T));
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    if (data_ != nullptr) static_cast<void>(cudaFree(data_));
  }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] size_t size() const { return count_; }
  [[nodiscard]] size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

/// `count` values in page-locked host memory.
template <typename T>
class PinnedArray {
 public:
  PinnedArray() = default;
  explicit PinnedArray(size_t count) : count_(count) {
    if (count != 0)
      cuda_check(cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(T)), "allocate page-locked memory");
  }
  PinnedArray(PinnedArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  PinnedArray& operator=(PinnedArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;
  ~PinnedArray() {
    if (data_ != nullptr) static_cast<void>(cudaFreeHost(data_));
  }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace tensorfold::backend::cuda
