#include "cli/usage_message.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace tensorfold::cli {
namespace {

/// Insertions, deletions, changes and swaps of neighbours that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> rows(a.size() + 1, std::vector<size_t>(b.size() + 1));
  std::iota(rows[0].begin(), rows[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    rows[i][0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[i][j] = std::min({changed, rows[i - 1][j] + 1, rows[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
    }
  }
  return rows[a.size()][b.size()];
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  const auto nearest = nearest_word(word, candidates);
  return nearest ? fmt::format("; did you mean {}?", *nearest) : "";
}

}  // namespace

std::optional<std::string> nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestWord = 64;  // longer ones are no slip of the keys
  if (word.empty() || word.size() > kLongestWord) return std::nullopt;
  std::optional<std::string> nearest;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const bool begins = word.size() >= 3 && candidate.starts_with(word);
    const size_t distance = begins ? 0 : edit_distance(word, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string unknown_command_message(const std::string& word, const std::vector<Command>& commands) {
  std::vector<std::string> names = {"--help", "--version"};
  for (const Command& command : commands) names.push_back(command.name);
  const char* kind = word.starts_with('-') ? "option" : "command";
  return fmt::format("there is no {} '{}'{} (`tensorfold --help` lists {})", kind, word, did_you_mean(word, names),
                     word.starts_with('-') ? "what there is" : "them; a model is a folder or owner/name");
}

std::string unexpected_word_message(const std::string& word, const Command& command) {
  if (!word.starts_with('-'))
    return fmt::format("{} does not take '{}' (`tensorfold {} --help`)", command.name, word, command.name);
  std::vector<std::string> names = {"--help"};
  for (const Option& option : command.options) names.push_back(option.name);
  const std::string name = word.substr(0, word.find('='));
  return fmt::format("{} has no option {}{} (`tensorfold {} --help`)", command.name, name, did_you_mean(name, names),
                     command.name);
}

std::string missing_message(const std::string& name, const Command& command) {
  for (const Option& option : command.options)
    if (option.name == name) return fmt::format("{} needs a value: {} {}", name, name, option.value);
  for (const Positional& positional : command.positionals)
    if (positional.name == name)
      return fmt::format("{} needs {}: {} (`tensorfold {} --help`)", command.name, name, positional.help, command.name);
  return fmt::format("{} is missing (`tensorfold {} --help`)", name, command.name);
}

}  // namespace tensorfold::cli
