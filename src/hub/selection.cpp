#include "hub/selection.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <system_error>

#include <nlohmann/json.hpp>

namespace tensorfold::hub {
namespace {

bool is_at_top(const std::string& name) { return name.find('/') == std::string::npos; }

bool is_weights(const std::string& name) { return name.ends_with(".safetensors"); }

bool is_description(const std::string& name) {
  return is_at_top(name) && (name.ends_with(".json") || name.ends_with(".jinja"));
}

}  // namespace

Selection select_files(const std::vector<RemoteFile>& files, bool all) {
  const auto is_copy = [](const RemoteFile& file) { return file.name.starts_with("consolidated"); };
  const bool has_others = std::any_of(files.begin(), files.end(), [&](const RemoteFile& file) {
    return is_at_top(file.name) && is_weights(file.name) && !is_copy(file);
  });
  Selection selection;
  for (const RemoteFile& file : files) {
    if (is_description(file.name))
      selection.descriptions.push_back(file);
    else if (all || (is_at_top(file.name) && is_weights(file.name) && !(has_others && is_copy(file))))
      selection.weights.push_back(file);
  }
  // config.json first: it decides whether the rest is worth fetching.
  std::stable_partition(selection.descriptions.begin(), selection.descriptions.end(),
                        [](const RemoteFile& file) { return file.name == "config.json"; });
  return selection;
}

std::set<std::string> indexed_weights(const std::filesystem::path& directory) {
  std::set<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().ends_with(".safetensors.index.json")) continue;
    std::ifstream in(it->path(), std::ios::binary);
    const auto index = nlohmann::json::parse(in, nullptr, false);
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) continue;
    for (const auto& file : index["weight_map"])
      if (file.is_string() && is_safe_file_name(file.get<std::string>())) names.insert(file.get<std::string>());
  }
  return names;
}

void add_indexed_weights(Selection& selection, const std::vector<RemoteFile>& files,
                         const std::filesystem::path& snapshot) {
  const std::set<std::string> indexed = indexed_weights(snapshot);
  for (const RemoteFile& file : files) {
    const auto same_name = [&](const RemoteFile& other) { return other.name == file.name; };
    if (indexed.contains(file.name) && std::none_of(selection.weights.begin(), selection.weights.end(), same_name))
      selection.weights.push_back(file);
  }
}

bool is_non_commercial(const std::string& license) {
  std::string name = license;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* mark : {"-nc", "noncommercial", "non-commercial", "research-only", "-research"})
    if (name.find(mark) != std::string::npos) return true;
  return false;
}

}  // namespace tensorfold::hub
