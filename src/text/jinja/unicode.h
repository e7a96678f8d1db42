// What Python's str methods know about letters: case mappings and character classes.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/marked_text.h"

namespace tensorfold::text::jinja {

enum class CaseMapping { upper, lower, title, fold };

/// Appends the full mapping of one code point (one to three letters), marked as `untrusted` says.
void append_mapped(TextBuilder& out, char32_t code_point, CaseMapping mapping, bool untrusted);
/// The text with every code point mapped.
MarkedText map_case(const MarkedText& text, CaseMapping mapping);

/// Python's str.isspace for one code point.
bool is_space(char32_t code_point);
/// Whether repr() shows the code point as it is.
bool is_printable(char32_t code_point);
/// True for letters that have case.
bool is_cased(char32_t code_point);

enum class CharacterClass { alphabetic, decimal, digit, numeric, alphanumeric, lower, upper_or_title };
bool is_in_class(char32_t code_point, CharacterClass character_class);

}  // namespace tensorfold::text::jinja
