#include "base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tensorfold {
namespace {

struct LeadRule {
  std::size_t length;  // of the whole sequence; 0: not a lead byte
  unsigned second_low, second_high;
};

LeadRule lead_rule(unsigned lead) {
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Position of the first byte >= 0x80 at or after `position`.
std::size_t skip_ascii(std::string_view text, std::size_t position) {
  while (position + 8 <= text.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + position, 8);
    if ((word & 0x8080808080808080ULL) != 0) break;
    position += 8;
  }
  while (position < text.size() && static_cast<unsigned char>(text[position]) < 0x80) ++position;
  return position;
}

// Position of the first sequence that is not valid, or the text's size.
std::size_t valid_prefix(std::string_view text) {
  std::size_t position = 0;
  while ((position = skip_ascii(text, position)) < text.size()) {
    const Utf8Step step = read_utf8(text, position);
    if (step.kind != Utf8Step::Kind::valid) break;
    position += step.length;
  }
  return position;
}

}  // namespace

Utf8Step read_utf8(std::string_view text, std::size_t position) {
  const unsigned lead = static_cast<unsigned char>(text[position]);
  if (lead < 0x80) return {Utf8Step::Kind::valid, lead, 1};
  const LeadRule rule = lead_rule(lead);
  if (rule.length == 0) return {Utf8Step::Kind::invalid, replacement_character, 1};
  char32_t value = lead & (0xFFU >> (rule.length + 1));
  for (std::size_t offset = 1; offset < rule.length; ++offset) {
    if (position + offset >= text.size()) return {Utf8Step::Kind::incomplete, replacement_character, offset};
    const unsigned byte = static_cast<unsigned char>(text[position + offset]);
    const unsigned low = offset == 1 ? rule.second_low : 0x80;
    const unsigned high = offset == 1 ? rule.second_high : 0xBF;
    if (byte < low || byte > high) return {Utf8Step::Kind::invalid, replacement_character, offset};
    value = value << 6 | (byte & 0x3FU);
  }
  return {Utf8Step::Kind::valid, value, rule.length};
}

std::size_t previous_code_point_start(std::string_view text, std::size_t position) {
  do --position;
  while (position > 0 && is_utf8_continuation(text[position]));
  return position;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if ((code_point >= 0xD800 && code_point < 0xE000) || code_point > 0x10FFFF) {
    text += replacement_utf8;
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) { return valid_prefix(text) == text.size(); }

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (true) {
    const std::size_t good = valid_prefix(text);
    result.append(text.substr(0, good));
    if (good == text.size()) return result;
    result += replacement_utf8;
    text.remove_prefix(good + read_utf8(text, good).length);
  }
}

std::size_t incomplete_utf8_suffix(std::string_view text) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(3, text.size()); ++length) {
    const std::size_t position = text.size() - length;
    if (is_utf8_continuation(text[position])) continue;
    return read_utf8(text, position).kind == Utf8Step::Kind::incomplete ? length : 0;
  }
  return 0;
}

}  // namespace tensorfold
