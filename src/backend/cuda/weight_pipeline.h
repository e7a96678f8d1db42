// The way of checkpoint bytes to the device: read from files into page-locked pieces by several threads, copied and
// repacked while the next piece is read. Bytes that no file holds are made on the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/device_array.h"
#include "format/tensor_store.h"

namespace tensorfold::backend::cuda {

class WeightPipeline {
 public:
  /// Of one tensor; a piece may hold parts of several.
  static constexpr uint64_t kPieceBytes = 32ULL << 20;

  WeightPipeline() = default;
  ~WeightPipeline();
  WeightPipeline(const WeightPipeline&) = delete;
  WeightPipeline& operator=(const WeightPipeline&) = delete;

  /// Begins a piece of up to `bytes`; waits until what its memory held before has been used.
  void begin(size_t bytes, cudaStream_t stream);
  /// Adds bytes [offset, offset + bytes) of a tensor to the piece; returns where they lie on the device (256-byte
  /// aligned), once `stream` gets there.
  const void* add(const format::TensorStore& store, const format::TensorInfo& tensor, uint64_t offset, size_t bytes);
  /// Ends the piece: everything that reads it has been enqueued.
  void end();
  /// Gives the memory back; the next piece takes it again.
  void release();

 private:
  struct Slot {
    PinnedArray<std::byte> host;
    DeviceArray<std::byte> device;
    cudaEvent_t done = nullptr;
  };
  std::array<Slot, 3> slots_;
  size_t current_ = 0;
  size_t used_ = 0;
  cudaStream_t stream_ = nullptr;
};

/// Reads bytes [offset, offset + out.size()) of a tensor with several threads.
void read_parallel(const format::TensorStore& store, const format::TensorInfo& tensor, uint64_t offset,
                   std::span<std::byte> out);

}  // namespace tensorfold::backend::cuda
