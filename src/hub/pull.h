// From a model's name to a folder with its files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "hub/cache.h"
#include "hub/client.h"
#include "hub/progress.h"
#include "hub/selection.h"

namespace tensorfold::hub {

/// What is known of a model before its weights are fetched.
struct ModelPreview {
  RepoId repo;
  std::filesystem::path directory;  ///< holds config.json and the other descriptions
  std::string license;              ///< may be empty
  uint64_t weight_bytes = 0;        ///< of the files that would be fetched
};

/// Throws Error when there is no point in fetching a model: an unknown family, an unread format, too little memory.
using ConfigCheck = std::function<void(const ModelPreview&)>;

/// Free bytes for a user on the disk of a folder that exists.
using FreeSpace = std::function<uint64_t(const std::filesystem::path&)>;

struct PullOptions {
  bool all = false;  ///< also the files we do not read
  int connections = 8;
  /// Larger files are fetched in pieces of this size. The checksum is sequential: with `connections` pieces on their
  /// way, this much times `connections` may be left for it when the last byte arrives.
  uint64_t piece_bytes = 32u << 20;
  FreeSpace free_space;  ///< empty: ask the file system
};

struct PullResult {
  std::filesystem::path directory;
  std::string commit;
  std::string license;
  uint64_t bytes = 0;          ///< of all wanted files
  uint64_t fetched_bytes = 0;  ///< of which were not here before
};

/// Fetches what is missing of a model's revision into the cache and names its snapshot. In order: ask the hub, fetch
/// the descriptions, `config_check`, look at the free disk, fetch the weights, and only then move the ref, so that a
/// pull cut short leaves the old revision in use. Throws Error: not_found, unauthorized, unsupported (nothing we read),
/// capacity, network, corrupt_file, cancelled, io, and what `config_check` throws.
PullResult pull(const Client& client, const Cache& cache, const RepoId& repo, const PullOptions& options,
                Progress& progress, const ConfigCheck& config_check);

/// Completes `snapshot`, which has everything its index names, with weight files that lie beside the index on the hub
/// (a draft head that was published later). Returns the folder with all of them; nothing when the hub has no such file,
/// or has other weights by now, so that far more would have to be fetched. Throws what pull throws.
std::optional<std::filesystem::path> add_side_files(const Client& client, const Cache& cache, const RepoId& repo,
                                                    const Snapshot& snapshot, const PullOptions& options,
                                                    Progress& progress);

/// The folder with a model's descriptions (no weights): from the cache if config.json is there, else from the hub.
std::filesystem::path fetch_config(const Client& client, const Cache& cache, const RepoId& repo, Progress& progress);

/// A folder to load a model from: `argument` itself if it is a folder; a complete cached snapshot of the repository it
/// names, without a network; else a pull of it. Throws invalid_request when it is neither, and what pull throws.
std::filesystem::path resolve_model(const Client& client, const Cache& cache, const std::string& argument,
                                    const PullOptions& options, Progress& progress, const ConfigCheck& config_check);

}  // namespace tensorfold::hub
