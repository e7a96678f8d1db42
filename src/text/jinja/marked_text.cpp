#include "text/jinja/marked_text.h"

#include <algorithm>

#include "base/utf8.h"

namespace tensorfold::text::jinja {

namespace {

std::size_t count_code_points(std::string_view bytes) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < bytes.size(); at = code_point_end(bytes, at)) ++count;
  return count;
}

}  // namespace

char32_t next_code_point(std::string_view bytes, std::size_t& at) {
  const auto lead = static_cast<unsigned char>(bytes[at]);
  if (lead < 0x80) {
    ++at;
    return lead;
  }
  const Utf8Step step = read_utf8(bytes, at);
  at += step.length;
  return step.code_point;
}

std::size_t code_point_end(std::string_view bytes, std::size_t at) {
  next_code_point(bytes, at);
  return at;
}

std::vector<std::size_t> code_point_offsets(std::string_view bytes) {
  std::vector<std::size_t> offsets;
  offsets.reserve(bytes.size() + 1);
  for (std::size_t at = 0; at < bytes.size(); at = code_point_end(bytes, at)) offsets.push_back(at);
  offsets.push_back(bytes.size());
  return offsets;
}

MarkedText::Data::Data(std::string text, std::vector<ByteRange> ranges, bool is_markup)
    : bytes(std::move(text)),
      untrusted(std::move(ranges)),
      markup(is_markup),
      code_points(count_code_points(bytes)),
      charge(sizeof(Data) + bytes.capacity() + untrusted.capacity() * sizeof(ByteRange)) {
  if (RenderMeter* meter = RenderMeter::current()) meter->step(bytes.size() / 1024);
}

MarkedText::MarkedText(std::string bytes, bool untrusted) {
  check_text_size(bytes.size());
  std::vector<ByteRange> ranges;
  if (untrusted && !bytes.empty()) ranges.push_back({0, bytes.size()});
  data_ = std::make_shared<const Data>(std::move(bytes), std::move(ranges), false);
}

const std::vector<ByteRange>& MarkedText::untrusted() const {
  static const std::vector<ByteRange> none;
  return data_ ? data_->untrusted : none;
}

bool MarkedText::untrusted_at(std::size_t byte) const {
  const auto& ranges = untrusted();
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), byte,
                                      [](std::size_t at, const ByteRange& range) { return at < range.begin; });
  return after != ranges.begin() && byte < std::prev(after)->end;
}

MarkedText MarkedText::with_markup(bool markup) const {
  if (is_markup() == markup) return *this;
  MarkedText result;
  result.data_ = std::make_shared<const Data>(str(), untrusted(), markup);
  return result;
}

MarkedText MarkedText::slice(std::size_t begin, std::size_t end) const {
  if (begin == 0 && end == size()) return *this;
  TextBuilder builder;
  builder.append(*this, begin, end);
  return builder.finish(is_markup());
}

void TextBuilder::mark(std::size_t begin, std::size_t end) {
  if (begin == end) return;
  if (!untrusted_.empty() && untrusted_.back().end == begin) {
    untrusted_.back().end = end;
  } else {
    untrusted_.push_back({begin, end});
  }
}

void TextBuilder::append(std::string_view bytes, bool untrusted) {
  check_text_size(bytes_.size() + bytes.size());
  const std::size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (untrusted) mark(begin, bytes_.size());
}

void TextBuilder::append(const MarkedText& text, std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  check_text_size(bytes_.size() + (end - begin));
  const std::size_t base = bytes_.size();
  bytes_.append(text.view().substr(begin, end - begin));
  const auto& ranges = text.untrusted();
  auto range = std::lower_bound(ranges.begin(), ranges.end(), begin,
                                [](const ByteRange& candidate, std::size_t at) { return candidate.end <= at; });
  for (; range != ranges.end() && range->begin < end; ++range) {
    mark(base + std::max(range->begin, begin) - begin, base + std::min(range->end, end) - begin);
  }
}

void TextBuilder::append_code_point(char32_t code_point, bool untrusted) {
  std::string encoded;
  append_utf8(encoded, code_point);
  append(encoded, untrusted);
}

MarkedText TextBuilder::finish(bool markup) {
  MarkedText text;
  if (!bytes_.empty()) {
    text.data_ = std::make_shared<const MarkedText::Data>(std::move(bytes_), std::move(untrusted_), markup);
  } else if (markup) {
    text = MarkedText().with_markup(true);
  }
  bytes_.clear();
  untrusted_.clear();
  return text;
}

}  // namespace tensorfold::text::jinja
