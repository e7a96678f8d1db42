// What the recurrent operations share: which raw rows a convolution sees, how a state travels along the rows of a plan,
// and what a kept window leaves of the convolution's inputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/plan.h"
#include "backend/tensors.h"

namespace tensorfold::backend::cpu {

/// Slides the raw rows of a convolution: tail[kernel - 1][channels] = the last of (old rows, new rows).
void update_tail(int64_t kernel, int64_t channels, std::span<const float* const> fresh, float* tail);

/// The `kernel` raw rows that a plan row's convolution reads, oldest first: the row, its path upwards, then `tail`.
void find_history(const Plan& plan, int32_t row, Tensor raw, const float* tail, int64_t kernel, const float** rows);

/// The same for row `index` of kept rows that continue from `tail`.
void find_kept_history(std::span<const float* const> kept, int64_t index, const float* tail, int64_t kernel,
                       int64_t channels, const float** rows);

/// The raw rows of one step batch: what the convolution reads, and what else the step takes.
struct RawRows {
  int64_t count = 0;
  int64_t extras = 0;
  std::vector<const float*> history;  ///< [count][kernel] channel rows, oldest first
  std::vector<const float*> extra;    ///< [count][extras]
  [[nodiscard]] const float* extra_row(int64_t row, int64_t which) const {
    return extra[static_cast<size_t>(row * extras + which)];
  }
};

/// The raw rows of kept records (channels, then the extras of `widths`) that continue from `tail`.
RawRows raw_rows_of(std::span<const float* const> records, std::span<const int64_t> widths, const float* tail,
                    int64_t kernel, int64_t channels);

/// Where each row's state comes from and goes to: a plan for one worker's buffers, the same for every head.
struct StateRoute {
  int32_t source = -1;  ///< buffer; -1: the committed state
  int32_t target = 0;
};
/// Routes of a window's rows, with as few buffers as its tree allows; `buffers` becomes their number.
std::vector<StateRoute> route_states(const Plan& plan, const SequenceRows& sequence, int32_t& buffers);

}  // namespace tensorfold::backend::cpu
