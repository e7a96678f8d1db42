#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace tensorfold::text {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopStrings::feed(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  std::size_t begin = std::string::npos;
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t found = held_.find(stop);
    if (found == std::string::npos) continue;
    const std::size_t behind = found + stop.size();
    if (behind > end || (behind == end && found > begin)) continue;
    begin = found;
    end = behind;
    found_ = stop;
  }
  if (begin != std::string::npos) {
    stopped_ = true;
    std::string text = std::exchange(held_, {});
    text.resize(begin);
    return text;
  }
  std::size_t tail = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t size = std::min(stop.size() - 1, held_.size()); size > tail; --size) {
      if (held_.compare(held_.size() - size, size, stop, 0, size) == 0) tail = size;
    }
  }
  std::string text = held_.substr(0, held_.size() - tail);
  held_.erase(0, held_.size() - tail);
  return text;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace tensorfold::text
