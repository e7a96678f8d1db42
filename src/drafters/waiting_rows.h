// Rows of the target that were kept and that a drafter has yet to read: they wait until drafts are wanted, since
// reading many at once is cheaper and most lanes that do not draft now never will.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"

namespace tensorfold::drafters {

/// A lane that drafts leaves no more than this at its end: its last window and a few plain rounds. More means that its
/// drafts did not pay, and reading them for a next turn would not either.
constexpr int32_t most_rows_read_at_the_end = 16;

class WaitingRows {
 public:
  struct Row {
    int32_t lane = 0;
    int32_t position = 0;
    int32_t token = 0;  ///< the one after it, where the drafter reads that too
    int32_t place = 0;  ///< where its outputs wait
  };
  /// Outputs of `width` values a row; room for `least` rows and for more where they are narrow.
  WaitingRows(backend::Backend& backend, int64_t width, int32_t least);

  [[nodiscard]] bool empty() const { return rows_.empty(); }
  [[nodiscard]] int32_t count(int32_t lane) const;
  /// Lets rows of the target's `outputs` wait, positions ascending from `first_position`, with the tokens after them
  /// (as many as rows, or none). Returns how many it had room for.
  size_t add(int32_t lane, int32_t first_position, std::span<const int32_t> rows, std::span<const int32_t> tokens,
             backend::Tensor outputs);
  /// Takes the rows of the lanes that `wanted` accepts: a lane's side by side, by position. Their outputs stay until
  /// the next add().
  std::vector<Row> take(const std::function<bool(int32_t lane)>& wanted);
  void drop(int32_t lane);
  /// Copies the rows' outputs to the first rows of `out`.
  void gather(std::span<const Row> rows, backend::Tensor out);

 private:
  backend::Backend& backend_;
  int32_t capacity_;
  backend::OwnedTensor outputs_;
  std::vector<Row> rows_;  ///< by place
  std::unordered_map<int32_t, int32_t> counts_;
};

}  // namespace tensorfold::drafters
