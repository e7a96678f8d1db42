// The byte-level alphabet: each of the 256 bytes is written as one printable character (as GPT-2 introduced it).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tensorfold::text {

/// The character that stands for a byte: bytes 33-126, 161-172 and 174-255 for themselves, the others from U+0100 on.
char32_t byte_level_character(unsigned char byte);

/// The byte a character stands for, if any.
std::optional<unsigned char> byte_level_byte(char32_t character);

/// Bytes written in the alphabet.
std::string to_byte_level(std::string_view bytes);

/// A token's bytes. A token with any character outside the alphabet stands for its own UTF-8 bytes.
std::string from_byte_level(std::string_view token);

}  // namespace tensorfold::text
