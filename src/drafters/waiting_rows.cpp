#include "drafters/waiting_rows.h"

#include <algorithm>

namespace tensorfold::drafters {
namespace {

constexpr int64_t kBytes = 16 << 20;
constexpr int64_t kMostRows = 8192;

}  // namespace

WaitingRows::WaitingRows(backend::Backend& backend, int64_t width, int32_t least)
    : backend_(backend),
      capacity_(
          static_cast<int32_t>(std::clamp<int64_t>(kBytes / (4 * width), least, std::max<int64_t>(least, kMostRows)))),
      outputs_(backend.allocate(capacity_, width)) {}

int32_t WaitingRows::count(int32_t lane) const {
  const auto found = counts_.find(lane);
  return found == counts_.end() ? 0 : found->second;
}

size_t WaitingRows::add(int32_t lane, int32_t first_position, std::span<const int32_t> rows,
                        std::span<const int32_t> tokens, backend::Tensor outputs) {
  const int32_t place = rows_.empty() ? 0 : rows_.back().place + 1;
  const size_t count = std::min(static_cast<size_t>(capacity_ - place), rows.size());
  if (count == 0) return 0;
  for (size_t k = 0; k < count; ++k) {
    const auto offset = static_cast<int32_t>(k);
    rows_.push_back({lane, first_position + offset, tokens.empty() ? 0 : tokens[k], place + offset});
  }
  counts_[lane] += static_cast<int32_t>(count);
  backend_.gather_rows(rows.first(count), outputs, outputs_.view, place);
  return count;
}

std::vector<WaitingRows::Row> WaitingRows::take(const std::function<bool(int32_t lane)>& wanted) {
  const auto taken =
      std::stable_partition(rows_.begin(), rows_.end(), [&](const Row& row) { return !wanted(row.lane); });
  std::vector<Row> rows(taken, rows_.end());
  rows_.erase(taken, rows_.end());
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.lane < b.lane; });
  for (const Row& row : rows) counts_.erase(row.lane);
  return rows;
}

void WaitingRows::drop(int32_t lane) {
  if (counts_.erase(lane) > 0) std::erase_if(rows_, [lane](const Row& row) { return row.lane == lane; });
}

void WaitingRows::gather(std::span<const Row> rows, backend::Tensor out) {
  std::vector<int32_t> places;
  places.reserve(rows.size());
  for (const Row& row : rows) places.push_back(row.place);
  backend_.gather_rows(places, outputs_.view, out, 0);
}

}  // namespace tensorfold::drafters
