// Text that remembers which of its bytes came from the request. Every string operation of the template language is
// built from slices of its operands, so the marks survive slicing, joining, case changes, replacing, stripping and
// formatting.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/render_meter.h"

namespace tensorfold::text::jinja {

/// Bytes [begin, end) of a text.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// An immutable UTF-8 string with marks; copies share one buffer.
class MarkedText {
 public:
  MarkedText() = default;
  /// Text of one origin.
  explicit MarkedText(std::string bytes, bool untrusted = false);

  [[nodiscard]] std::string_view view() const { return data_ ? std::string_view(data_->bytes) : std::string_view(); }
  [[nodiscard]] std::string str() const { return std::string(view()); }
  [[nodiscard]] std::size_t size() const { return view().size(); }
  [[nodiscard]] bool empty() const { return view().empty(); }

  /// Bytes that came from the request, in order, neither touching nor overlapping.
  [[nodiscard]] const std::vector<ByteRange>& untrusted() const;
  [[nodiscard]] bool untrusted_at(std::size_t byte) const;

  /// True for text that HTML escaping leaves alone (the `safe` filter).
  [[nodiscard]] bool is_markup() const { return data_ && data_->markup; }
  [[nodiscard]] MarkedText with_markup(bool markup) const;

  /// Number of code points.
  [[nodiscard]] std::size_t length() const { return data_ ? data_->code_points : 0; }
  /// Bytes [begin, end) as a text of their own.
  [[nodiscard]] MarkedText slice(std::size_t begin, std::size_t end) const;

 private:
  friend class TextBuilder;
  struct Data {
    Data(std::string text, std::vector<ByteRange> ranges, bool is_markup);
    std::string bytes;
    std::vector<ByteRange> untrusted;
    bool markup;
    std::size_t code_points;
    MemoryCharge charge;
  };
  std::shared_ptr<const Data> data_;
};

/// Appends pieces and keeps their marks.
class TextBuilder {
 public:
  void append(std::string_view bytes, bool untrusted = false);
  void append(const MarkedText& text) { append(text, 0, text.size()); }
  /// Bytes [begin, end) of `text` with their marks.
  void append(const MarkedText& text, std::size_t begin, std::size_t end);
  void append_code_point(char32_t code_point, bool untrusted = false);
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] MarkedText finish(bool markup = false);

 private:
  void mark(std::size_t begin, std::size_t end);
  std::string bytes_;
  std::vector<ByteRange> untrusted_;
};

/// The code point that starts at bytes[at]; `at` moves behind it. Malformed bytes come out as U+FFFD.
char32_t next_code_point(std::string_view bytes, std::size_t& at);
/// Byte offset of each code point, and the size of the text at the end.
std::vector<std::size_t> code_point_offsets(std::string_view bytes);
/// The end of the code point that starts at bytes[at].
std::size_t code_point_end(std::string_view bytes, std::size_t at);

}  // namespace tensorfold::text::jinja
