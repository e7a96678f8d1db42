#include "engine/prompt_schedule.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace tensorfold::engine {

std::vector<size_t> prompt_order(std::span<const PromptWork> work) {
  std::vector<size_t> order(work.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto rank = [&](size_t i) {
    const PromptWork& w = work[i];
    const bool starved = w.passed_over >= most_passed_over;
    return std::tuple(!starved, !starved && w.background, starved ? 0 : w.rows_left, w.arrival);
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  return order;
}

void DecodeShare::prompt_round(double seconds) {
  credit_ = std::min(credit_, 0.0) + share_ * seconds;
  rounds_left_ = 32;
}

void DecodeShare::decode_round(double seconds) {
  credit_ -= seconds;
  rounds_left_ -= 1;
}

}  // namespace tensorfold::engine
