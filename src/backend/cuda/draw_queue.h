// The draws and candidates that have been asked for and not read yet. Rows are drawn on the device; the host draws
// those few that the device cannot (a share of more than row_draw::kMostListed candidates in order, a penalised or
// biased token named twice): their logits are copied, the others' never leave the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/activation.cuh"
#include "backend/cuda/device_array.h"
#include "backend/cuda/draw_rows.h"
#include "backend/cuda/upload_ring.h"
#include "backend/draw.h"

namespace tensorfold::backend::cuda {

class DrawQueue {
 public:
  /// Enqueues draws from rows of `logits` (fp32).
  void draw(const Activation& logits, std::span<const DrawRow> rows, UploadRing& uploads, cudaStream_t stream);
  /// Waits for them; out.size() is the number of rows.
  void read(std::span<Drawn> out, cudaStream_t stream);

  /// Enqueues the `count` largest of the first `rows` rows of `logits`. Error(unsupported) above kMostListed.
  void find_candidates(const Activation& logits, int32_t rows, int32_t count, cudaStream_t stream);
  /// Waits for them: [rows][count].
  void read_candidates(std::span<float> values, std::span<int32_t> ids, cudaStream_t stream);

 private:
  enum class Way { known, device, host };
  struct Pending {
    DrawRow row;  ///< its spans point into the vectors below
    Way way = Way::device;
    size_t place = 0;  ///< among the rows of its way
    std::vector<TokenCount> counts;
    std::vector<LogitBias> biases;
    std::vector<uint32_t> mask;
  };

  [[nodiscard]] Way way_of(const DrawRow& row, int64_t vocabulary);
  template <typename Entry>
  bool names_one_twice(std::span<const Entry> entries, int64_t vocabulary);
  /// Appends `values` to the block that is uploaded; returns their offset.
  template <typename Value>
  size_t add_to_upload(std::span<const Value> values);
  DrawTask task_of(const DrawRow& row, const Activation& logits);
  void upload_and_launch(std::vector<DrawTask>& tasks, UploadRing& uploads, cudaStream_t stream);

  std::vector<Pending> pending_;
  int64_t vocabulary_ = 0;
  std::vector<std::byte> upload_;
  std::vector<uint32_t> seen_;  ///< a bit a token
  DeviceArray<std::byte> uploaded_;
  DeviceArray<float> adjusted_;
  DeviceArray<DrawResult> results_;
  PinnedArray<DrawResult> read_results_;
  PinnedArray<float> host_logits_;

  int32_t candidate_rows_ = 0;
  int32_t candidate_count_ = 0;
  DeviceArray<int32_t> candidates_;  ///< ids, then values
  PinnedArray<int32_t> read_candidates_;
};

}  // namespace tensorfold::backend::cuda
