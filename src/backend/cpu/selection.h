// What each row of a forward attends to.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/operations/block_index.h"

namespace tensorfold::backend::cpu {

struct CpuSelection final : Selection {
  CpuSelection(int64_t rows, int32_t most_chosen, int32_t block_positions)
      : chosen(most_chosen),
        block(block_positions),
        blocks(static_cast<size_t>(rows * most_chosen)),
        sparse(static_cast<size_t>(rows), 0),
        complete(static_cast<size_t>(rows), 0) {}

  [[nodiscard]] bool is_sparse(int64_t row) const { return sparse[static_cast<size_t>(row)] != 0; }
  /// How many keys a row that sees `visible` positions attends to.
  [[nodiscard]] int64_t keys(int64_t row, int64_t visible) const {
    return is_sparse(row) ? 1LL * chosen * block + visible % block : visible;
  }
  /// The position of key `place` of a sparse row, ascending.
  [[nodiscard]] int64_t position(int64_t row, int64_t place) const {
    const int64_t in_blocks = 1LL * chosen * block;
    if (place >= in_blocks) return complete[static_cast<size_t>(row)] * block + place - in_blocks;
    return blocks[static_cast<size_t>(row * chosen + place / block)] * int64_t{block} + place % block;
  }

  int32_t chosen;
  int32_t block;
  std::vector<int32_t> blocks;    ///< [rows][chosen], ascending
  std::vector<uint8_t> sparse;    ///< of a row; 0: it attends to every position
  std::vector<int64_t> complete;  ///< blocks that a sparse row could choose from
  uint64_t forward = 0;           ///< which forward wrote it
};

}  // namespace tensorfold::backend::cpu
