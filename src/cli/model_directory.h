// From MODEL on the command line to a folder. In a build without the hub only folders are models.
#pragma once

#include <string>

namespace tensorfold::cli {

/// The folder to load MODEL from: itself when it is one, else the hub's cache, downloaded when something is missing,
/// with progress on standard output. A model that no family here serves is refused before its weights are fetched.
/// Throws Error.
std::string model_directory(const std::string& model);

/// The folder that holds MODEL's config.json and its like; its weights are not fetched. Throws Error.
std::string config_directory(const std::string& model);

}  // namespace tensorfold::cli
