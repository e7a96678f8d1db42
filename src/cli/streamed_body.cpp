#include "cli/streamed_body.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace tensorfold::cli {
namespace {

constexpr size_t largest_chunk = size_t{1} << 30;
constexpr size_t longest_size_line = 1024;

}  // namespace

void StreamedBody::feed(std::string& raw) {
  if (!chunked_) {
    take(raw);
    raw.clear();
    return;
  }
  while (!done_) {
    const size_t line = raw.find("\r\n");
    if (line == std::string::npos) {
      if (raw.size() > longest_size_line) fail(ErrorKind::network, "the answer's chunks have no sizes");
      return;
    }
    size_t size = 0;
    const auto read = std::from_chars(raw.data(), raw.data() + line, size, 16);
    if (read.ec != std::errc() || read.ptr == raw.data() || size > largest_chunk) {
      fail(ErrorKind::network, "the answer has a malformed chunk size");
    }
    if (raw.size() < line + 2 + size + 2) return;
    done_ = size == 0;
    take(std::string_view(raw).substr(line + 2, size));
    raw.erase(0, line + 2 + size + 2);
  }
}

void StreamedBody::take(std::string_view piece) {
  text_ += piece;
  if (!on_event_) return;
  size_t begin = 0;
  // Servers end lines with one newline or with two characters.
  for (size_t end = text_.find('\n', searched_); end != std::string::npos; end = text_.find('\n', end + 1)) {
    const bool blank = end + 1 < text_.size() && text_[end + 1] == '\n';
    const bool blank_with_return = end + 2 < text_.size() && text_[end + 1] == '\r' && text_[end + 2] == '\n';
    if (!blank && !blank_with_return) continue;
    std::string_view event = std::string_view(text_).substr(begin, end - begin);
    while (!event.empty()) {
      const size_t stop = std::min(event.find('\n'), event.size());
      std::string_view line = event.substr(0, stop);
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.rfind("data: ", 0) == 0) on_event_(line.substr(6));
      event.remove_prefix(std::min(stop + 1, event.size()));
    }
    end += blank ? 1 : 2;
    begin = end + 1;
  }
  text_.erase(0, begin);
  searched_ = text_.size() - std::min<size_t>(text_.size(), 2);
}

}  // namespace tensorfold::cli
