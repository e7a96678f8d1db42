#include "format/problem_list.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace tensorfold::format {
namespace {

constexpr size_t kLongestName = 200;
constexpr size_t kMostShown = 200;

}  // namespace

std::string printable(std::string_view name) {
  std::string text;
  for (const char character : name.substr(0, kLongestName)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 0x20 && byte < 0x7F) {
      text.push_back(character);
    } else {
      text += fmt::format("\\x{:02x}", byte);
    }
  }
  if (name.size() > kLongestName) text += "...";
  return text.empty() ? "\"\"" : text;
}

std::string printable_json(const nlohmann::json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return printable(std::string_view(value.dump(-1, ' ', true)));
}

std::string to_string(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

void ProblemList::throw_if_any(ErrorKind kind, std::string_view subject) const {
  if (problems_.empty()) return;
  std::string line(subject);
  const size_t shown = std::min(problems_.size(), kMostShown);
  for (size_t i = 0; i < shown; ++i) line += (i == 0 ? ": " : "; ") + problems_[i];
  if (shown < problems_.size()) line += fmt::format("; and {} more", problems_.size() - shown);
  throw Error(kind, line);
}

}  // namespace tensorfold::format
