#include "engine/prefix_names.h"

#include <algorithm>

#include "base/digest.h"

namespace tensorfold::engine {
namespace {

// A gap below this is filled again faster than a state is worth keeping.
constexpr int32_t long_gap = 3072;

}  // namespace

std::vector<PrefixName> prefix_names(std::span<const int32_t> tokens) {
  std::vector<PrefixName> names;
  names.reserve(tokens.size() + 1);
  PrefixName name = 0x7065667869;
  names.push_back(name);
  for (const int32_t token : tokens) {
    name = mix_bits(name * 0x9E3779B97F4A7C15 + static_cast<uint32_t>(token) + 1);
    names.push_back(name);
  }
  return names;
}

std::vector<int32_t> snapshot_points(int32_t prompt_tokens, std::span<const int32_t> hints) {
  std::vector<int32_t> points;
  const auto last = [&] { return points.empty() ? 0 : points.back(); };
  const int32_t end = prompt_tokens - 1;
  for (const int32_t hint : hints) {
    if (hint <= end && hint - last() >= least_state_gap) points.push_back(hint);
  }
  if (end - last() >= least_state_gap) points.push_back(end);
  int32_t before = 0;
  int32_t widest = 0;
  int32_t start = 0;
  for (const int32_t point : points) {
    if (point - before > widest) {
      widest = point - before;
      start = before;
    }
    before = point;
  }
  if (widest >= long_gap) {
    points.push_back(start + widest / 3);
    points.push_back(start + 2 * (widest / 3));
    std::sort(points.begin(), points.end());
  }
  return points;
}

}  // namespace tensorfold::engine
