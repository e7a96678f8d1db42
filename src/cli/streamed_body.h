// The body of a streamed answer as it arrives: chunked framing, then server-sent events.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace tensorfold::cli {

/// Takes pieces of any size; the events are the same however the bytes are cut.
class StreamedBody {
 public:
  /// `on_event` gets each event's data; without it the text is kept. It must outlive the body.
  StreamedBody(bool chunked, const std::function<void(std::string_view data)>& on_event)
      : chunked_(chunked), on_event_(on_event) {}

  /// Takes from the front of `raw` what is complete. Error network for framing that is no chunked coding.
  void feed(std::string& raw);
  /// The last chunk has come.
  [[nodiscard]] bool done() const { return done_; }
  std::string take_text() { return std::move(text_); }

 private:
  void take(std::string_view piece);
  bool chunked_;
  bool done_ = false;
  size_t searched_ = 0;  ///< no event ends before here
  std::string text_;
  const std::function<void(std::string_view)>& on_event_;
};

}  // namespace tensorfold::cli
