// Memory of one cache layout on the device.
//
// Paged entries: bf16, entry by entry, pages of [width / 64][page_tokens][64] (key_place.cuh). Recurrent states, entry
// by entry: S fp32 [slots][value_heads][value_dim][key_dim] and the convolution's tail bf16 [slots][kernel -
// 1][channels]. Window records (what commit needs of the rows that a sequence may keep): keys and values bf16
// [records][width] a paged entry; step inputs fp32 [records][channels + 2 value_heads] and raw rows bf16
// [records][channels] a state entry.
#pragma once

#include <memory>
#include <vector>

#include "backend/cache.h"
#include "backend/cuda/device_array.h"

namespace tensorfold::backend::cuda {

/// Window rows that one plan may hold beside rows of sequences that keep all.
constexpr int32_t kMostWindowRows = 256;

struct PagedMemory {
  int64_t width = 0;
  DeviceArray<uint16_t> pages;
  DeviceArray<uint16_t> window;
};

struct StateMemory {
  GatedDeltaShape shape;
  DeviceArray<float> states;
  DeviceArray<uint16_t> tails;
  DeviceArray<float> steps;
  DeviceArray<uint16_t> raw;
  [[nodiscard]] int64_t state_values() const { return int64_t{shape.value_heads} * shape.value_dim * shape.key_dim; }
  [[nodiscard]] int64_t tail_values() const { return int64_t{shape.kernel - 1} * shape.channels(); }
  [[nodiscard]] int64_t step_values() const { return shape.channels() + 2LL * shape.value_heads; }
};

class CudaCache : public Cache {
 public:
  CudaCache(const CacheLayout& layout, const CacheSize& size);
  ~CudaCache() override { count_memory_change(); }
  CudaCache(const CudaCache&) = delete;
  CudaCache& operator=(const CudaCache&) = delete;
  [[nodiscard]] const CacheLayout& layout() const override { return layout_; }
  [[nodiscard]] const CacheSize& size() const override { return size_; }
  [[nodiscard]] int64_t page_bytes() const override;
  [[nodiscard]] int64_t state_bytes() const override;

  [[nodiscard]] PagedMemory& paged(int32_t entry) const;
  [[nodiscard]] StateMemory& state(int32_t entry) const;
  [[nodiscard]] const std::vector<std::unique_ptr<PagedMemory>>& all_paged() const { return paged_; }
  [[nodiscard]] const std::vector<std::unique_ptr<StateMemory>>& all_states() const { return states_; }
  [[nodiscard]] int32_t records() const { return records_; }

 private:
  CacheLayout layout_;
  CacheSize size_;
  int32_t records_ = 0;
  std::vector<std::unique_ptr<PagedMemory>> paged_;  // by entry, null where the entry is a state
  std::vector<std::unique_ptr<StateMemory>> states_;
};

}  // namespace tensorfold::backend::cuda
