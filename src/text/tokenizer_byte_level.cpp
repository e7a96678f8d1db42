#include "text/tokenizer_byte_level.h"

#include <array>

#include "base/utf8.h"

namespace tensorfold::text {
namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr std::array<char32_t, 256> make_characters() {
  std::array<char32_t, 256> result{};
  char32_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) result[byte] = stands_for_itself(byte) ? byte : next++;
  return result;
}

constexpr std::array<char32_t, 256> characters = make_characters();
constexpr std::size_t character_limit = 256 + 68;

constexpr std::array<short, character_limit> make_bytes() {
  std::array<short, character_limit> result{};
  for (short& entry : result) entry = -1;
  for (unsigned byte = 0; byte < 256; ++byte) result[characters[byte]] = static_cast<short>(byte);
  return result;
}

constexpr std::array<short, character_limit> bytes = make_bytes();

}  // namespace

char32_t byte_level_character(unsigned char byte) { return characters[byte]; }

std::optional<unsigned char> byte_level_byte(char32_t character) {
  if (character >= character_limit || bytes[character] < 0) return std::nullopt;
  return static_cast<unsigned char>(bytes[character]);
}

std::string to_byte_level(std::string_view text) {
  std::string result;
  result.reserve(text.size() * 2);
  for (const char c : text) append_utf8(result, byte_level_character(static_cast<unsigned char>(c)));
  return result;
}

std::string from_byte_level(std::string_view token) {
  std::string result;
  result.reserve(token.size());
  for (std::size_t position = 0; position < token.size();) {
    const std::optional<unsigned char> byte = byte_level_byte(next_code_point(token, position));
    if (!byte) return std::string(token);
    result.push_back(static_cast<char>(*byte));
  }
  return result;
}

}  // namespace tensorfold::text
