// UTF-8: reading, writing and repairing text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tensorfold {

/// U+FFFD, what stands for bytes that are not UTF-8.
inline constexpr char32_t replacement_character = 0xFFFD;
/// U+FFFD as UTF-8.
inline constexpr std::string_view replacement_utf8 = "\xEF\xBF\xBD";

/// What lies at a position of a byte string.
struct Utf8Step {
  enum class Kind { valid, invalid, incomplete };
  Kind kind;            ///< incomplete: the text ends inside a sequence that was good so far
  char32_t code_point;  ///< of a valid sequence, otherwise U+FFFD
  std::size_t length;   ///< bytes to step over; of a bad sequence its longest good beginning (at least 1)
};

/// Reads the sequence at `position` (which must lie inside `text`) by the rules of Unicode's table 3-7 (no surrogates,
/// no overlong forms), cutting bad bytes as the Unicode standard recommends ("maximal subpart").
Utf8Step read_utf8(std::string_view text, std::size_t position);

/// Reads the code point at `position` and moves past it. The text must be valid UTF-8.
inline char32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto byte = [&](std::size_t offset) { return static_cast<unsigned char>(text[position + offset]); };
  const unsigned lead = byte(0);
  char32_t result = lead;
  std::size_t length = 1;
  if (lead >= 0xF0) {
    result = (lead & 0x07U) << 18 | (byte(1) & 0x3FU) << 12 | (byte(2) & 0x3FU) << 6 | (byte(3) & 0x3FU);
    length = 4;
  } else if (lead >= 0xE0) {
    result = (lead & 0x0FU) << 12 | (byte(1) & 0x3FU) << 6 | (byte(2) & 0x3FU);
    length = 3;
  } else if (lead >= 0x80) {
    result = (lead & 0x1FU) << 6 | (byte(1) & 0x3FU);
    length = 2;
  }
  position += length;
  return result;
}

/// Whether `byte` continues a sequence rather than beginning one.
constexpr bool is_utf8_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

/// Start of the last code point before `position` (> 0). The text must be valid UTF-8.
std::size_t previous_code_point_start(std::string_view text, std::size_t position);

/// Appends a code point; a surrogate or a value above U+10FFFF is written as U+FFFD.
void append_utf8(std::string& text, char32_t code_point);

/// Whether every byte belongs to a valid sequence.
bool is_valid_utf8(std::string_view text);

/// The text with each maximal bad subpart replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

/// Number of bytes (0 to 3) at the end of `text` that begin a sequence which the text does not finish.
std::size_t incomplete_utf8_suffix(std::string_view text);

}  // namespace tensorfold
