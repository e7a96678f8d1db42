// Where tests find data that is not part of the project: reference vectors in a folder `shared` beside it, or where
// TENSORFOLD_SHARED points. A test that finds nothing skips and says so.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace tensorfold::testing {

/// The project's root.
std::filesystem::path source_directory();

/// The path of `relative` in the shared folder, or nothing when it is not there.
inline std::optional<std::filesystem::path> shared_path(const std::string& relative) {
  const char* override_root = std::getenv("TENSORFOLD_SHARED");
  const std::filesystem::path root =
      override_root != nullptr ? std::filesystem::path(override_root) : source_directory().parent_path() / "shared";
  const std::filesystem::path path = root / relative;
  if (std::filesystem::exists(path)) return path;
  return std::nullopt;
}

/// The path of `relative` inside the project.
inline std::filesystem::path project_path(const std::string& relative) {
  return source_directory() / relative;
}

}  // namespace tensorfold::testing
