#include "base/console.h"

#include <fmt/format.h>

namespace tensorfold {

std::string without_controls(std::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool layout = byte == '\n' || byte == '\t';
    // C1 controls are two bytes of UTF-8.
    const bool upper =
        byte == 0xC2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xE0U) == 0x80U;
    if (upper) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    } else if ((byte < 0x20 && !layout) || byte == 0x7F) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += text[i];
    }
  }
  return shown;
}

void say_line(std::FILE* stream, std::string_view text) noexcept {
  try {
    const std::string line = without_controls(text) + "\n";
    std::fwrite(line.data(), 1, line.size(), stream);
    std::fflush(stream);
  } catch (...) {
    // No memory for the line either: nothing to be said.
  }
}

}  // namespace tensorfold
