#include "hub/names.h"

#include <algorithm>

#include <fmt/format.h>

namespace tensorfold::hub {
namespace {

bool is_alphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

bool is_word_character(char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; }

bool is_repo_part(std::string_view part) {
  return !part.empty() && part.size() <= 96 && is_alphanumeric(part.front()) &&
         part.find("--") == std::string_view::npos &&  // it separates owner and name in the cache
         std::all_of(part.begin(), part.end(), is_word_character);
}

/// Whether `test` holds for every component between slashes.
template <typename Test>
bool all_components(std::string_view path, Test test) {
  while (true) {
    const size_t slash = path.find('/');
    if (!test(path.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

}  // namespace

std::optional<RepoId> parse_repo(std::string_view text) {
  const size_t at = text.find('@');
  const std::string_view id = text.substr(0, at);
  const size_t slash = id.find('/');
  if (slash == std::string_view::npos || id.find('/', slash + 1) != std::string_view::npos) return std::nullopt;
  RepoId repo{std::string(id.substr(0, slash)), std::string(id.substr(slash + 1)), ""};
  if (!is_repo_part(repo.owner) || !is_repo_part(repo.name)) return std::nullopt;
  if (at != std::string_view::npos) {
    repo.revision = text.substr(at + 1);
    if (!is_safe_revision(repo.revision)) return std::nullopt;
  }
  return repo;
}

bool is_safe_revision(std::string_view text) {
  if (text.empty() || text.size() > 255 || text.front() == '-') return false;
  return all_components(text, [](std::string_view part) {
    return !part.empty() && part != "." && part != ".." && std::all_of(part.begin(), part.end(), is_word_character);
  });
}

bool is_safe_file_name(std::string_view text) {
  if (text.empty() || text.size() > 1024) return false;
  const auto forbidden = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\'; };
  if (std::any_of(text.begin(), text.end(), forbidden)) return false;
  return all_components(
      text, [](std::string_view part) { return !part.empty() && part.size() <= 255 && part != "." && part != ".."; });
}

bool is_commit_hash(std::string_view text) {
  return text.size() == 40 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_safe_component(std::string_view text) {
  return !text.empty() && text.size() <= 200 && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), is_word_character);
}

std::string percent_encoded(std::string_view text, bool keep_slash) {
  std::string out;
  for (const char c : text) {
    if (is_word_character(c) || c == '~' || (keep_slash && c == '/'))
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (const char c : text.substr(0, limit)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  if (text.size() > limit) out += "...";
  return out;
}

}  // namespace tensorfold::hub
