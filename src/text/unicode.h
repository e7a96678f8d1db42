// Properties of code points as Hugging Face's tokenizers library sees them. It mixes versions of Unicode, and so do
// we: 16.0 unless a function says otherwise (see scripts/make-unicode-tables.py).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tensorfold::text {

/// General categories, in the order of the generated tables.
enum class Category : std::uint8_t {
  Cn,
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Co,
  Cs
};

/// General category of a code point (Unicode 16.0).
Category category(char32_t code_point);
/// Canonical combining class (Unicode 9.0, the version that normalisation uses).
std::uint8_t combining_class(char32_t code_point);

/// Category L*.
bool is_letter(char32_t code_point);
/// Category M* in Unicode 9.0 (what StripAccents removes).
bool is_accent(char32_t code_point);
/// Category N* (Rust's char::is_numeric).
bool is_number(char32_t code_point);
/// Category P* in Unicode 8.0, or any other visible ASCII character that is neither letter nor digit.
bool is_punctuation(char32_t code_point);
/// Property White_Space.
bool is_whitespace(char32_t code_point);
/// `\w` of Rust's regular expressions: Alphabetic, M*, Nd, Pc and the two joiners.
bool is_word(char32_t code_point);

/// Full lower case (Unicode 17.0) of each character by itself, without the rules that look at its neighbours (Rust's
/// char::to_lowercase).
std::string lower_case(std::string_view text);

/// PCRE2 10.42 knows Unicode 14.0 and counts U+180E as a blank. For the code points where that differs from 16.0, a
/// code point of equal UTF-8 length whose category in 14.0 is what it should be; otherwise the code point itself.
char32_t regex_stand_in(char32_t code_point);
/// Whether regex_stand_in would change any character of valid UTF-8 text.
bool needs_regex_stand_ins(std::string_view text);

}  // namespace tensorfold::text
