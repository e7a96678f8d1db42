// The Hugging Face cache on disk, shared with the Python tools:
//
//   <root>/models--owner--name/blobs/<etag>                   the content of a file, named by the hub's etag
//                             /refs/<revision>                the commit a branch or tag pointed to
//                             /snapshots/<commit>/<file>      a relative link to ../../blobs/<etag>
//                             /.tensorfold/<commit>.json      ours: the files a pull of that commit set out to fetch
//   <root>/.locks/models--owner--name/<etag>.lock             held (flock) while a blob is written
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hub/names.h"

namespace tensorfold::hub {

/// A revision of a model as it lies in the cache; not necessarily complete (see missing_files).
struct Snapshot {
  std::filesystem::path directory;
  std::string commit;
  bool from_ref = true;  ///< false: no ref named it, it is the newest snapshot with a config.json
};

/// A repository in the cache.
struct CachedModel {
  std::string id;                   ///< `owner/name`
  std::filesystem::path directory;  ///< the newest (or only) snapshot; empty when there is none
  uint64_t bytes = 0;               ///< content on disk, shared blobs counted once
  uint64_t partial_bytes = 0;       ///< of which belongs to unfinished downloads
  bool complete = false;            ///< everything `directory` needs is there
};

/// A file a pull set out to fetch.
struct ExpectedFile {
  std::string name;
  uint64_t size = 0;
};

/// The cache below one root. Methods throw Error(io) when the operating system refuses.
class Cache {
 public:
  /// How a snapshot refers to a blob.
  enum class Links { symbolic, none };

  explicit Cache(std::filesystem::path root, Links links = Links::symbolic);

  [[nodiscard]] const std::filesystem::path& root() const { return root_; }
  [[nodiscard]] std::filesystem::path repo_directory(const RepoId& repo) const { return root_ / repo.folder(); }
  [[nodiscard]] std::filesystem::path blob_path(const RepoId& repo, const std::string& etag) const;
  [[nodiscard]] std::filesystem::path lock_path(const RepoId& repo, const std::string& etag) const;
  [[nodiscard]] std::filesystem::path snapshot_path(const RepoId& repo, const std::string& commit) const;

  /// The snapshot of the repository's revision, without a network: a commit is itself, a ref names a commit; without a
  /// usable ref the default branch is the newest snapshot with a config.json.
  [[nodiscard]] std::optional<Snapshot> locate(const RepoId& repo) const;

  /// What keeps `snapshot` from being loaded: files a pull expected, config.json, weight files its index names; a
  /// dangling link counts as missing. Without a pull's list also tokenizer.json, except for draft models. Empty when
  /// complete.
  [[nodiscard]] static std::vector<std::string> missing_files(const Snapshot& snapshot);

  /// Every model below the root, by name.
  [[nodiscard]] std::vector<CachedModel> list() const;

  /// Removes a model with all its revisions; returns the freed bytes. Throws not_found when it is not there,
  /// unsupported when its folder is a link to somewhere else, and io while a pull writes into it.
  uint64_t remove(const RepoId& repo) const;

  /// Makes `snapshots/<commit>/<name>` refer to the blob `etag`: a relative symbolic link, else a hard link, else a
  /// copy. Refuses to write through a folder that is a link.
  void link_file(const RepoId& repo, const std::string& commit, const std::string& name, const std::string& etag) const;

  /// The size of `snapshots/<commit>/<name>` following links, or nothing when it is absent or dangling.
  [[nodiscard]] std::optional<uint64_t> file_size(const RepoId& repo, const std::string& commit,
                                                  const std::string& name) const;

  void write_ref(const RepoId& repo, const std::string& commit) const;
  [[nodiscard]] std::optional<std::string> read_ref(const RepoId& repo) const;
  void write_expected(const RepoId& repo, const std::string& commit, const std::vector<ExpectedFile>& files) const;

 private:
  std::filesystem::path root_;
  Links links_;
};

/// Makes `path` and the folders above it. Throws Error(io), naming HF_HOME as the way out.
void make_directories(const std::filesystem::path& path);

/// Writes `text` to `path` so that a reader sees the old content or the new, never a part. Makes the folders.
void write_file_atomically(const std::filesystem::path& path, const std::string& text);

/// The endings of what an unfinished download leaves beside its blob (file_parts.h).
inline constexpr const char* kPartialSuffix = ".tensorfold-part";
inline constexpr const char* kJournalSuffix = ".tensorfold-journal";

}  // namespace tensorfold::hub
