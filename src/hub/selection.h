// Which files of a repository we read. Everything else (other formats' weights, images, papers) stays on the hub.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "hub/client.h"

namespace tensorfold::hub {

/// Files in the order they are fetched: what describes the model, then its weights.
struct Selection {
  std::vector<RemoteFile> descriptions;  ///< config, index, tokenizer, templates
  std::vector<RemoteFile> weights;       ///< *.safetensors; with `all`, everything that is no description
};

/// Splits a repository's files. Read are `*.json` and `*.jinja` at the top, and `*.safetensors` at the top except
/// `consolidated*`, a second copy some repositories carry, when there are others.
Selection select_files(const std::vector<RemoteFile>& files, bool all);

/// Weight files below folders are read if an index at the top of `snapshot` names them: adds those.
void add_indexed_weights(Selection& selection, const std::vector<RemoteFile>& files,
                         const std::filesystem::path& snapshot);

/// Every file the weight indexes (`*.safetensors.index.json`) in `directory` name; unreadable ones name nothing.
std::set<std::string> indexed_weights(const std::filesystem::path& directory);

/// Whether a model card's licence forbids commercial use, by its usual names.
bool is_non_commercial(const std::string& license);

}  // namespace tensorfold::hub
