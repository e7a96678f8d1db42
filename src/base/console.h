// Lines for people. Text may come from a file or a request, so what would steer a terminal is shown and not sent.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace tensorfold {

/// `text` with control characters (C0, DEL, C1) as "\x1b"; line breaks and tabs stay.
std::string without_controls(std::string_view text);

/// Writes `text` and a line break, with no control characters, and flushes. An output that takes nothing is not an
/// error: what is said must not fail what is done.
void say_line(std::FILE* stream, std::string_view text) noexcept;

}  // namespace tensorfold
